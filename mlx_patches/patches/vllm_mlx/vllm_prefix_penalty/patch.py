"""After a prefix hit, a repetition penalty does not cover the tokens that were in the cache.

Why
    The scheduler gives mlx-lm's batch generator only the tokens that are left to process, without
    those before them (``all_tokens``). A logits processor is called with the tokens that the
    generator knows, so a penalty, or a grammar, starts after the cached prefix: the same request
    is answered differently once its prefix is in the cache.
How
    As soon as the scheduler has inserted requests, and before their prompts are processed, those
    with processors get the prompt's first tokens as the tokens before.
Upstream
    Not fixed in vllm-mlx 0.6.0.
Retire when
    The scheduler passes ``all_tokens``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ....core.patch import Patch, Target, around


def scheduled(schedule: Callable[..., Any], scheduler: Any) -> Any:
    """Schedule waiting requests; processors of those that are inserted see the whole prompt."""
    requests = schedule(scheduler)
    prompts = {request.batch_uid: request.prompt_token_ids for request in requests}
    # Older batch generators take no tokens that come before.
    for sequence in getattr(scheduler.batch_generator, "_unprocessed_sequences", ()):
        uid, segments, _, _, before, _, processors, *_ = sequence
        if processors and not before and uid in prompts:
            # The scheduler passes no list, so this one is the generator's own.
            before += unseen(prompts[uid], segments)
    return requests


def unseen(prompt: Sequence[int], segments: Sequence[Sequence[int]]) -> list[int]:
    """The tokens of a prompt that come before its last ones, which are left to process."""
    return list(prompt[: max(0, len(prompt) - sum(map(len, segments)))])


PATCH = Patch(
    id="vllm-prefix-penalty",
    every_model=True,
    summary="vllm-mlx: after a prefix-cache hit, repetition penalties ignore the cached tokens",
    targets=(
        Target("vllm-mlx", "vllm_mlx.scheduler", "Scheduler._schedule_waiting", around(scheduled)),
    ),
)
