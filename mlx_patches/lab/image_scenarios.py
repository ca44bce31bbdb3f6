"""The lab's scenarios for images with features: a whole tiny model in the release's engine.

``engine-images`` passes only an image's positions to the language model; here the vision tower,
the projector and the server's embedding step run too. They run only if named, for example with
``mlx-patches lab --scenario features``.
"""

import functools
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from ..core.arrays import mx
from ..evidence.results import NotApplicable
from ..evidence.words import GREEN, RED
from . import Cell, Generated, LabModel, NotBuilt, generators
from .compare import compare_generated, differences
from .engine import generate_module, unless_refused
from .registry import NAMED, scenario
from .server_thread import response_generator, serve
from .whole import IMAGE, LAST, Prompt, Whole, build_whole, embed_prompt

# For each row: the step at which it is inserted, its images, the tokens before the first and after
# each image, how many tokens it generates, and whether its client then disconnects.
ROWS = (
    (0, 0, 6, 0, 12, False),
    (0, 1, 2, 3, 3, True),
    (0, 2, 4, 5, 12, False),
    (8, 1, 1, 2, 6, False),
)
# The text that the server decodes as they arrive (its tokens count the steps), and its limit.
FIRST, COUNT = (3, 1, 4, 1, 5), 12
# The tokens of a prefill chunk: fewer than an image has.
CHUNK = 4
# More than any prompt has; older releases do not accept None.
WHOLE = 1 << 20
# The tokens that features-solo forces after every prompt.
ANSWER = (3, 5, 7)


@scenario("features", NAMED)
def features(model: LabModel) -> Cell:
    """Rows with two images, one or none; one leaves and one arrives later."""
    return run_in_engine(model)


@scenario("features-chunked", NAMED)
def features_chunked(model: LabModel) -> Cell:
    """Like features, with chunked prefill; chunks are shorter than an image."""
    return run_in_engine(model, CHUNK)


@scenario("features-solo", NAMED)
def features_solo(model: LabModel) -> Cell:
    """Single requests with images: chunks shorter than an image against one chunk."""
    whole = whole_of(model)
    prompts = [one for one in prompts_of(whole) if one.shown]

    def read(chunk: int) -> list[dict[int, Any]]:
        answers = [run_solo(whole, one, ANSWER, prefill_step_size=chunk) for one in prompts]
        return [dict(enumerate(answer)) for answer in answers]

    expected = read(WHOLE)
    if any(len(answer) != len(ANSWER) for answer in expected):
        raise NotApplicable("the release's generate_step takes no sampler")
    return differences(read(CHUNK), expected, model.tolerance)


@scenario("features-count", NAMED)
def features_count(model: LabModel) -> Cell:
    """An image changes the embeddings of exactly its own tokens, and adds none."""
    whole = whole_of(model)
    for index, one in enumerate(prompts_of(whole)):
        if one.shown is None:
            continue
        text = embed_prompt(whole.module, one.prompt, {})["inputs_embeds"]
        seen = embed_prompt(whole.module, one.prompt, dict(one.shown))["inputs_embeds"]
        if seen.shape != text.shape:
            return Cell(RED, f"row {index}: {seen.shape[1]} embeddings for {text.shape[1]} tokens")
        moved = (mx.abs(seen - text).max(-1) > 0)[0].tolist()
        images = [token == IMAGE for token in one.prompt]
        if not any(moved):
            raise NotApplicable("its images reach the language model another way")
        if wrong := [
            at for at, pair in enumerate(zip(moved, images, strict=True)) if len({*pair}) > 1
        ]:
            return Cell(
                RED, f"row {index}: features do not match the image tokens, from {wrong[0]} on"
            )
    return Cell(GREEN, "each image token has its feature")


@scenario("features-served", NAMED)
def features_served(model: LabModel) -> Cell:
    """Like features, through the server's running generator while it decodes another text."""
    whole = whole_of(model)
    prompts = [Prompt(0, FIRST, COUNT), *prompts_of(whole)]
    again = functools.partial(build_whole, model.family, dtype=model.dtype)
    with unless_refused():
        output = serve(again, prompts)
    return compare_with_solo(whole, prompts, output)


def run_in_engine(model: LabModel, chunk: int = 0) -> Cell:
    whole = whole_of(model)
    prompts = prompts_of(whole)
    options = {"prefill_step_size": chunk} if chunk else {}
    generator = WholeGenerator(whole, max(one.asked for one in prompts), **options)
    return compare_with_solo(whole, prompts, generators.run_in(generator, prompts))


def compare_with_solo(
    whole: Whole, prompts: Sequence[Prompt], output: Sequence[Sequence[Generated]]
) -> Cell:
    """Compare the generated tokens with ``generate_step`` of each single prompt."""
    for index, (one, row) in enumerate(zip(prompts, output, strict=True)):
        if len(row) != one.count:
            return Cell(RED, f"row {index}: {len(row)} tokens instead of {one.count}")
    expected = [
        run_solo(whole, one, [answer.token for answer in row])
        for one, row in zip(prompts, output, strict=True)
    ]
    return compare_generated(output, expected, whole.lab.tolerance)


def whole_of(model: LabModel) -> Whole:
    if model.family.distribution == "mlx-lm":
        raise NotApplicable("the release takes no images")
    try:
        return build_whole(model.family, dtype=model.dtype)
    except NotBuilt as reason:
        raise NotApplicable(str(reason)) from reason


def prompts_of(whole: Whole) -> list[Prompt]:
    """The requests of ROWS; each prompt's images have different pixels."""
    prompts = []
    for row, (turn, count, before, after, tokens, leaves) in enumerate(ROWS):
        text = [1 + (7 * (row + at)) % LAST for at in range(before)]
        seeds = [10 * row + index for index in range(min(count, whole.images.most))]
        for index in range(len(seeds)):
            text += [*whole.tokens, *(1 + (5 * (row + index + at)) % LAST for at in range(after))]
        shown = whole.images.inputs(text, seeds) if seeds else None
        prompts.append(Prompt(turn, text, tokens, leaves=leaves, shown=shown))
    return prompts


def run_solo(whole: Whole, prompt: Prompt, tokens: Sequence[int], **options: Any) -> list[Any]:
    """The log-probabilities before each of these tokens in the release's ``generate_step``."""
    inputs = {"pixel_values": None, **prompt.inputs, "prompt_cache": whole.lab.make_cache()}
    inputs |= options
    ids, inputs["mask"] = inputs.pop("input_ids"), inputs.pop("attention_mask")
    return generators.force_tokens(whole.lab, tokens, ids, whole.module, **inputs)[: len(tokens)]


class WholeGenerator(generators.VlmGenerator):
    """The batch generator of mlx-vlm around a whole model's language model, like in its server."""

    def __init__(self, whole: Whole, count: int, **options: Any):
        self.whole, self.embed = whole.module, embedding_step()
        kind = generate_module(whole.lab).BatchGenerator
        super().__init__(whole.lab, kind, count, whole.module.language_model, **options)

    def _insert_request(self, one: Any) -> int:
        server = SimpleNamespace(model=self.whole, vision_cache=None)
        _, arguments = self.embed(server, one.inputs)
        (uid,) = self.release.insert([list(one.prompt)], [one.asked], prompt_kwargs=[arguments])
        return int(uid)


def embedding_step() -> Callable[..., Any]:
    """The function with which the release's server computes a prompt's embeddings."""
    step: Callable[..., Any] = response_generator()._gpu_embed
    return step
