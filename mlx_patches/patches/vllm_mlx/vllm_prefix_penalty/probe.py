"""Penalizes repetition: of a prompt in vllm-mlx's prefix cache, and of an answer's last token."""

from types import SimpleNamespace
from typing import Any

from ....probes.kit import NotApplicable, Result, Target, import_module, mx, own_class_of
from ....probes.vllm_scheduler import MEMORY, Server, build_llama

_PREFIX = [1 + (7 * i) % 90 for i in range(600)]
# A token in the penalty's context, the last 20, is not repeated.
PENALTY = 1e6


def probe(target: Target) -> Result:
    """Red if the penalty does not cover a cached token, or the token that a step feeds."""
    if target.name == "MLLMBatchGenerator._step":
        return probe_step(own_class_of(target))
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
        if token in _PREFIX[-15:]:
            return prompt, token
    raise RuntimeError("the model never repeats a token of the prompt")


def answer_uncached(model: Any, prompt: list[int]) -> list[int]:
    """The penalized answer without a prefix cache.

    All requests to these servers are penalized: mlx-lm mixes up the rows of requests with and
    without processors, which is another defect.
    """
    return Server(model, enable_prefix_cache=False).answer(prompt, repetition_penalty=PENALTY)


def fill_cache(model: Any, **config: Any) -> Server:
    server = Server(model, **config)
    server.answer([*_PREFIX, 93], repetition_penalty=PENALTY)
    return server


def probe_step(kind: Any) -> Result:
    """Red if an image model repeats the penalized token that it is fed, beside a plain row."""
    generator, logits = kind.__new__(kind), mx.array([[[0.0, 2.0, 1.0]]] * 2)
    generator.language_model = lambda tokens, cache: SimpleNamespace(logits=logits)
    generator._shared_batch_sampler = None
    make = import_module(kind.__module__).MLLMBatchRequest
    plain, penalized = (
        make(row, str(row), "", temperature=0.0, repetition_penalty=penalty)
        for row, penalty in enumerate((1.0, PENALTY))
    )
    tokens, _ = generator._step(mx.array([[1], [1]]), [], [plain, penalized])
    return Result(
        tokens.tolist() != [1, 2] or penalized.output_tokens != [],
        f"after token 1: {tokens.tolist()}, without and with a penalty",
    )
