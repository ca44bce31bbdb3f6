"""The release's batch generator, with requests that arrive, generate tokens and leave.

mlx-lm and mlx-vlm call theirs differently; the wrappers here share one interface.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..core.arrays import mx
from ..evidence.results import NotApplicable
from . import Generated, LabModel, engine

Processor = Callable[[Any, Any], Any]
Sampler = Callable[[Any], Any]
# The step at which the other rows have generated a few tokens.
LATE = 5


def generate(
    model: LabModel,
    prompts: Sequence[Sequence[int]],
    late: Sequence[int],
    count: int,
    **options: Any,
) -> list[list[Generated]]:
    """Return the tokens that the release's batch generator generates greedily, ``count`` per row.

    ``late``: one more prompt, inserted at step LATE. ``options``: arguments of the generator.
    """
    requests = [Request(0, prompt, count) for prompt in prompts]
    return run_requests(model, [*requests, Request(LATE, late, count)], **options)


def limit_caches(model: LabModel, size: int) -> Callable[[], list[Any]]:
    """Return a function that makes a row's caches like the release does for ``max_kv_size``."""
    generator = getattr(engine.generate_module(model), "BatchGenerator", None)
    if generator is None or "max_kv_size" not in inspect.signature(generator).parameters:
        raise NotApplicable("the release's batch generator takes no max_kv_size")
    if hasattr(model.module, "make_cache"):
        raise NotApplicable("the model makes its own caches, whatever max_kv_size is")
    if _slides(model.config):
        # mistral3 and pixtral wrap a Llama whose make_cache is never called: the mask of a sliding
        # layer counts back from the newest column and mistakes kept tokens for new ones.
        raise NotApplicable("its sliding layers mask no cache that keeps first tokens")
    make = model.family.part("models.cache").make_prompt_cache
    return lambda: list(make(model.module, max_kv_size=size))


def _slides(config: Any) -> bool:
    if not isinstance(config, dict):
        return False
    return bool(config.get("sliding_window")) or any(map(_slides, config.values()))


def make_generator(model: LabModel, count: int, **options: Any) -> Any:
    """Make the release's batch generator; ``count`` is its ``max_tokens``."""
    generator = getattr(engine.generate_module(model), "BatchGenerator", None)
    if generator is None:
        raise NotApplicable("the release has no batch generator")
    vision = "processor" in inspect.signature(generator).parameters
    return (VlmGenerator if vision else _LmGenerator)(model, generator, count, **options)


def samples_by_row(model: LabModel) -> bool:
    return "samplers" in inspect.signature(make_generator(model, 1).release.insert).parameters


def refuses_bits(model: LabModel, bits: int) -> bool:
    """Whether mlx-vlm's batch generator, possibly patched, ignores ``kv_bits`` for this model."""
    release = make_generator(model, 1, kv_bits=bits, kv_group_size=engine.GROUP).release
    return getattr(release, "kv_bits", bits) is None


def nucleus(model: LabModel, top_p: float) -> Sampler:
    utils = model.family.part("sample_utils")
    if model.family.distribution == "mlx-lm":
        sampler: Sampler = utils.make_sampler(temp=1.0, top_p=top_p)
        return sampler
    # Like mlx_vlm.server at temperature 1.
    return lambda logprobs: utils.top_p_sampling(logprobs, top_p, 1.0)


@dataclass(frozen=True)
class Request:
    """A row that is inserted into the engine at some step.

    Args:
        turn: the generator's step at which the row is inserted, from 0.
        prompt: token ids.
        count: how many of the row's tokens are collected.
        processors: logits processors of this row; None to pass none.
        sampler: the row's sampler; None for the generator's.
        image: the prompt, if it holds images.
        leaves: the row is removed after ``count`` tokens, before its limit.
        arguments: what the prompt's embedding step returned for the generator.
    """

    turn: int
    prompt: Sequence[int]
    count: int
    processors: Sequence[Processor] | None = None
    sampler: Sampler | None = None
    image: engine.Image | None = None
    leaves: bool = False
    arguments: dict[str, Any] = field(default_factory=dict)

    @property
    def asked(self) -> int:
        return 2 * self.count if self.leaves else self.count

    @property
    def own(self) -> dict[str, Any]:
        """The row's arguments of the generator's ``insert``, by name."""
        own: dict[str, Any] = {}
        if self.processors is not None:
            own["logits_processors"] = list(self.processors)
        if self.sampler is not None:
            own["samplers"] = self.sampler
        return own


def run_requests(
    model: LabModel, requests: Sequence[Request], **options: Any
) -> list[list[Generated]]:
    """Return each request's tokens; ``options`` are arguments of the batch generator."""
    generator = make_generator(model, max(one.asked for one in requests), **options)
    taken = inspect.signature(generator.release.insert).parameters
    for name in (name for one in requests for name in one.own if name not in taken):
        raise NotApplicable(f"the release's generator takes no {name.replace('_', ' ')} of a row")
    return run_in(generator, requests)


@engine.unless_refused()
def run_in(generator: "_LmGenerator", requests: Sequence[Request]) -> list[list[Generated]]:
    if any(one.leaves for one in requests) and not hasattr(generator.release, "remove"):
        raise NotApplicable("the release's generator cannot remove a row")
    output: dict[int, list[Generated]] = {}
    leaving: dict[int, int] = {}
    order: list[int] = []
    last = max(one.turn for one in requests)
    for turn in range(last + 10 * max(one.count for one in requests)):
        coming = [one for one in requests if one.turn == turn]
        if coming:
            new = generator.insert_requests(coming)
            leaving |= {uid: one.count for uid, one in zip(new, coming, strict=True) if one.leaves}
            order += new
        for uid, token in generator.next():
            output.setdefault(uid, []).append(token)
            if len(output[uid]) == leaving.get(uid):
                generator.remove(uid)
        if turn >= last and sum(map(len, output.values())) == sum(one.count for one in requests):
            break
    return [output.get(uid, []) for uid in order]


def force_tokens(
    model: LabModel, tokens: Sequence[int], prompt: Any, called: Any, **options: Any
) -> list[Any]:
    """The log-probabilities before each of these tokens, in the release's ``generate_step``.

    The sampler returns the tokens whatever the logits are. One more follows if the release
    computes a step ahead.
    """
    output: list[Any] = []

    def sampler(logprobs: Any) -> Any:
        output.append(logprobs.reshape(-1).astype(mx.float32))
        return mx.array([tokens[min(len(output), len(tokens)) - 1]])

    step = engine.generate_module(model).generate_step
    for _ in step(prompt, called, sampler=sampler, max_tokens=len(tokens), **options):
        pass
    return output


def read_answer(answer: Any) -> Generated:
    """The token and log-probabilities in a response of a release's generator.

    The lab requests as many top log-probabilities as there are text tokens. If a model's
    vocabulary is larger, the list is incomplete and ignored.
    """
    own, every, top = (
        getattr(answer, name, None) for name in ("token_logprob", "logprobs", "top_logprobs")
    )
    if every is None and top and max(top)[0] < len(top):
        every = mx.array([value for _, value in sorted(top)])
    return Generated(answer.token, own, every)


def _generation(answers: Any) -> list[Any]:
    """The responses with tokens, from a step's (prompt responses, generation responses)."""
    return list(answers[1] if isinstance(answers, tuple) else answers)


class _LmGenerator:
    """The batch generator of mlx-lm."""

    def __init__(self, model: LabModel, generator: Any, count: int, **options: Any):
        self.release = generator(model.module, max_tokens=count, **options)
        self.count = count

    def insert(self, prompts: Sequence[Sequence[int]]) -> list[int]:
        return self.insert_requests([Request(0, prompt, self.count) for prompt in prompts])

    def insert_requests(self, requests: Sequence[Request]) -> list[int]:
        names = {name for one in requests for name in one.own}
        return list(
            self.release.insert(
                [list(one.prompt) for one in requests],
                [one.asked for one in requests],
                **{name: [one.own.get(name) for one in requests] for name in names},
            )
        )

    def remove(self, uid: int) -> None:
        self.release.remove([uid])

    def answers(self) -> list[Any]:
        return _generation(self.release.next())

    def next(self) -> list[tuple[int, Generated]]:
        """Take a step; returns each row with a new token, and the token."""
        return [(one.uid, read_answer(one)) for one in self.answers()]


class VlmGenerator(_LmGenerator):
    """The batch generator of mlx-vlm.

    The generator requires embeddings, which mlx-vlm computes outside the language model. Here it
    gets zeros, and the model that it calls reads the token ids. For an image the model gets its
    tokens and positions, but no features.
    """

    def __init__(
        self, model: LabModel, generator: Any, count: int, language: Any = None, **options: Any
    ):
        self.model, self.count = model, count
        called = TextOnly(model) if language is None else language
        self.release = generator(called, Endless(), max_tokens=count, **options)
        self.by_row = "prompt_kwargs" in inspect.signature(self.release.insert).parameters

    def insert_requests(self, requests: Sequence[Request]) -> list[int]:
        if self.by_row:
            return [self._insert_request(one) for one in requests]
        if any(one.image or one.own for one in requests):
            raise NotApplicable("the release's generator takes no arguments of a prompt")
        engine.embed(self.model, None)
        prompts = [list(one.prompt) for one in requests]
        return list(self.release.insert(prompts, [one.asked for one in requests]))

    def _insert_request(self, one: Request) -> int:
        engine.embed(self.model, one.image)
        prompt = list(one.prompt)
        (uid,) = self.release.insert(
            [prompt],
            [one.asked],
            prompt_kwargs=[self._own(prompt, one.image) | one.arguments],
            **{name: [value or None] for name, value in one.own.items()},
        )
        return int(uid)

    def remove(self, uid: int) -> None:
        self.release.remove(uid)

    def answers(self) -> list[Any]:
        if self.by_row:
            return _generation(self.release.next())
        reads = self.release.unprocessed_prompts[: self.release.prefill_batch_size]
        if not reads:
            return _generation(self.release.next()) if self.release.active_batch else []
        longest = max(len(prompt) for _, prompt, _ in reads)
        engine.embed(self.model, None)
        embeds = mx.zeros((len(reads), longest, 1))
        return _generation(self.release.next(inputs_embeds=embeds))

    def _own(self, prompt: list[int], image: engine.Image | None = None) -> dict[str, Any]:
        own = {"inputs_embeds": mx.zeros((1, len(prompt), 1))}
        grid = {} if image is None else {"image_grid_thw": image.grid}
        own |= grid
        if engine.own_positions(self.model):
            index = self.model.module.get_rope_index(mx.array([prompt]), *grid.values())
            # Falcon OCR returns more; its host passes none of it for text.
            if len(index) == 2:
                own["position_ids"], own["rope_deltas"] = index
        return own


class TextOnly:
    """A language model that reads token ids and ignores the embeddings passed to it.

    If a cache treats prompt tokens and generated tokens differently, the model's own embeddings
    replace them, since only a prompt comes with embeddings.
    """

    def __init__(self, model: LabModel):
        self.__dict__["_model"] = model
        self.__dict__["_embeds"] = engine.answer_window(model) is not None

    def __call__(
        self,
        inputs: Any,
        inputs_embeds: Any = None,
        mask: Any = None,
        cache: Any = None,
        n_to_process: Any = None,
        **kwargs: Any,
    ) -> Any:
        base = self._model.family.part("models.base")
        if inputs_embeds is not None and self._embeds:
            kwargs["inputs_embeds"] = self._model.module.model.embed_tokens(inputs)
        return base.LanguageModelOutput(logits=self._model.call(inputs, cache, **kwargs))

    @property
    def language_model(self) -> "TextOnly":
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model.module, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._model.module, name, value)


class Endless:
    """The part of a tokenizer that a batch generator needs; there is no stop token."""

    def __init__(self) -> None:
        self.stopping_criteria = self

    def add_eos_token_ids(self, ids: Any) -> None:
        """Ignore the ids."""

    def __call__(self, token: Any) -> bool:
        return False
