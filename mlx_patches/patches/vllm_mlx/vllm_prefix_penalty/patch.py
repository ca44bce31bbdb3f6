"""vllm-mlx, Rapid-MLX: after a prefix-cache hit, penalties ignore the cached tokens.

Why: The scheduler passes mlx-lm's batch generator only the tokens that are left to process, without
    those before them (``all_tokens``). Logits processors get the generator's tokens, so a penalty
    or a grammar starts after the cached prefix: the answer to a request changes once its prefix is
    in the cache.
How: After the scheduler has inserted requests, and before their prompts are processed, those with
    processors get the cached tokens of their prompts too.
Upstream: Not fixed in vllm-mlx 0.6.0 and Rapid-MLX 0.16.10.
Retire when: The scheduler passes ``all_tokens``.
"""

from collections.abc import Sequence
from typing import Any

from ....core.verbs import Patch, result


def pass_cached_tokens(requests: Any, scheduler: Any, /) -> Any:
    """The scheduled requests; the processors of those just inserted get the whole prompt."""
    prompts = {request.batch_uid: request.prompt_token_ids for request in requests}
    # Older batch generators do not accept the tokens before.
    for sequence in getattr(scheduler.batch_generator, "_unprocessed_sequences", ()):
        uid, segments, _, _, before, _, processors, *_ = sequence
        if processors and not before and uid in prompts:
            # The scheduler passes no list, so only the generator has this one.
            before += cut_prompt(prompts[uid], segments)
    return requests


def cut_prompt(prompt: Sequence[int], segments: Sequence[Sequence[int]]) -> list[int]:
    """The tokens of a prompt that come before its last ones, which are left to process."""
    return list(prompt[: max(0, len(prompt) - sum(map(len, segments)))])


PATCH = Patch(
    id="vllm-prefix-penalty",
    targets=result(
        [f"{one}.scheduler:Scheduler._schedule_waiting" for one in ("vllm_mlx", "rapid_mlx")],
        pass_cached_tokens,
    ),
)
