"""Penalizes repetition in a prompt whose first tokens are in vllm-mlx's prefix cache."""

from typing import Any

from ....probes.kit import NotApplicable, Result, Target
from ....probes.vllm_scheduler import MEMORY, Server, build_llama

_PREFIX = [1 + (7 * i) % 90 for i in range(600)]
# A token in the penalty's context, the last 20, is not repeated.
PENALTY = 1e6
_SEEN = _PREFIX[-15:]


def probe(target: Target) -> Result:
    """Red if the penalty does not cover a cached token."""
    model = build_llama()
    prompt, repeated = find_repeating_prompt(model)
    first = answer_uncached(model, prompt)
    if first[0] == repeated:
        raise NotApplicable("this release's scheduler has no repetition penalty")
    server = fill_cache(model, **MEMORY)
    answer = server.answer(prompt, repetition_penalty=PENALTY)
    if not server.request.cached_tokens:
        raise NotApplicable("this release's prefix cache has no hit here")
    detail = f"after a prefix hit {answer}, without a prefix cache {first}"
    return Result(answer != first, f"{detail}; {repeated} is in the prefix")


def find_repeating_prompt(model: Any) -> tuple[list[int], int]:
    """A prompt after which the model repeats a token of the prefix, and that token."""
    plain = Server(model, enable_prefix_cache=False)
    for last in range(1, 96):
        prompt = [*_PREFIX, 91, last]
        token = plain.answer(prompt)[0]
        if token in _SEEN:
            return prompt, token
    raise RuntimeError("the model never repeats a token of the prompt")


def answer_uncached(model: Any, prompt: list[int]) -> list[int]:
    """The penalized answer without a prefix cache.

    All requests to these servers are penalized: mlx-lm mixes up the rows of requests with and
    without processors, which is another defect.
    """
    return Server(model, enable_prefix_cache=False).answer(prompt, repetition_penalty=PENALTY)


def fill_cache(model: Any, **config: Any) -> Server:
    """A server whose prefix cache has the prefix."""
    server = Server(model, **config)
    server.answer([*_PREFIX, 93], repetition_penalty=PENALTY)
    return server
