"""mlx-lm with a draft model: wrong output in every later turn over a kept prompt cache.

Why: The tokens that a step adds are fed in the next step, and the last ones never are: the model's
    caches lack an answer's last token unless the draft model proposed it, the draft model's caches
    lack up to two tokens. Callers, and mlx_lm.server's prompt cache, count on the whole answer, so
    every later turn reads a shifted context. With ``kv_bits``, the caches are also replaced by
    quantized ones in copies of the list, and the caller keeps the stale ones.
How: When a generation with a prompt cache ends, however it does, each model is fed the tokens that
    its caches lack, and the caller's list gets the caches that the generation used.
Upstream: Not fixed in mlx-lm 0.32.2.
Retire when: ``speculative_generate_step`` leaves caches that hold exactly the prompt and the
    answer.
"""

import sys
from collections.abc import Callable, Iterator
from typing import Any

from ....core.handed import hand_over
from ....core.verbs import Patch, mx, wrap


class SplitCaches(list[Any]):
    """A list of caches that records its slices: the model's caches, then the draft model's."""

    def __init__(self, caches: list[Any]):
        super().__init__(caches)
        self.parts: list[list[Any]] = []

    def __getitem__(self, place: Any) -> Any:
        found = super().__getitem__(place)
        if isinstance(place, slice):
            self.parts.append(found)
        return found


def complete_caches(
    generate: Callable[..., Iterator[Any]],
    prompt: Any,
    model: Any,
    draft_model: Any,
    *args: Any,
    prompt_cache: list[Any] | None = None,
    **options: Any,
) -> Iterator[Any]:
    """The steps of a generation that leaves complete caches in the caller's list."""
    if prompt_cache is None:  # nothing is kept
        return generate(prompt, model, draft_model, *args, prompt_cache=None, **options)
    split = SplitCaches(prompt_cache)
    before = list(map(count_tokens, prompt_cache))
    steps = generate(prompt, model, draft_model, *args, prompt_cache=split, **options)

    def complete(_: Any, answer: list[int]) -> bool:
        begin = 0
        stream = options.get("stream", sys.modules["mlx_lm.generate"].generation_stream)
        for one, caches in zip((model, draft_model), split.parts, strict=True):
            counts = zip(map(count_tokens, caches), before[begin:], strict=False)
            # A draft model's recurrent caches count no tokens, and cannot take any back.
            fed = next((now - then for now, then in counts if now is not None), None)
            missing = [] if fed is None else find_missing(prompt, answer, fed)
            begin += len(caches)
            if missing:
                with mx.stream(stream):
                    one(mx.array([missing], mx.uint32), cache=caches)
                    mx.eval([cache.state for cache in caches])
        prompt_cache[:] = [cache for caches in split.parts for cache in caches]
        return True

    return finish(steps, hand_over("draft-kept-cache", complete, lambda answer: False))


def finish(steps: Any, complete: Callable[[list[int]], bool]) -> Iterator[Any]:
    """Yield the steps, then call ``complete`` with the answer, also if the caller stops early."""
    answer: list[int] = []
    try:
        for step in steps:
            answer.append(step[0])
            yield step
    except GeneratorExit:
        steps.close()  # trims the rejected drafts
        complete(answer)
        raise
    complete(answer)


def count_tokens(cache: Any) -> Any:
    return getattr(getattr(cache, "caches", (cache,))[0], "offset", None)


def find_missing(prompt: Any, answer: list[int], fed: int) -> list[int]:
    """The last tokens of the prompt and the answer, of which ``fed`` were fed."""
    lost = fed - prompt.size
    return answer[lost:] if lost >= 0 else [*prompt[lost:].tolist(), *answer]


PATCH = Patch(
    id="draft-kept-cache",
    targets=wrap("mlx_lm.generate:speculative_generate_step", complete_caches),
)
