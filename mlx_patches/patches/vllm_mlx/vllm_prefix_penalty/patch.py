"""vllm-mlx, Rapid-MLX: penalties ignore cached tokens, or with Rapid-MLX --mllm the newest.

Why: The scheduler passes mlx-lm's batch generator only the tokens that are left to process, without
    those before them (``all_tokens``). Logits processors get the generator's tokens, so a penalty
    or a grammar starts after the cached prefix: the answer to a request changes once its prefix is
    in the cache. With ``--mllm``, Rapid-MLX appends a token to its answer after it has computed the
    next one: each token may come twice.
How: After the scheduler has inserted requests, and before their prompts are processed, those with
    processors get the cached tokens of their prompts too. For a step of ``--mllm``, the answers of
    penalized rows include the token that is fed; it is not read from the device.
Upstream: Not fixed in vllm-mlx 0.6.0 and Rapid-MLX 0.16.10.
Retire when: The schedulers pass all tokens.
"""

from collections.abc import Sequence
from typing import Any

from ....core.verbs import Function, Patch, mx, result, wrap


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


def feed_counted(
    step: Function, generator: Any, tokens: Any, cache: Any, requests: Any = None, /
) -> Any:
    """A step of rows whose penalties count the tokens that it feeds."""
    answers = []
    try:
        for row, request in enumerate(requests or ()):
            if count := count_penalized(request):
                answers.append((request, request.output_tokens))
                answer = mx.array(request.output_tokens[-count:], tokens.dtype)
                request.output_tokens = mx.concatenate([answer, tokens[row].reshape(-1)])
        return step(generator, tokens, cache, requests)
    finally:
        for request, answer in answers:
            request.output_tokens = answer


def count_penalized(request: Any) -> int:
    """The number of an answer's last tokens that a request's penalties count."""
    counts = [0]
    if request.repetition_penalty != 1:
        window = request.repetition_context_size
        counts.append(20 if window is None else window or len(request.output_tokens) + 1)
    if request.presence_penalty or request.frequency_penalty:
        counts.append(4096)  # the most that Rapid-MLX counts
    return max(counts)


PATCH = Patch(
    id="vllm-prefix-penalty",
    targets=(
        *result(
            [f"{one}.scheduler:Scheduler._schedule_waiting" for one in ("vllm_mlx", "rapid_mlx")],
            pass_cached_tokens,
        ),
        *wrap("rapid_mlx.mllm_batch_generator:MLLMBatchGenerator._step", feed_counted),
    ),
)
