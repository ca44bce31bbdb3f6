"""Runs vllm-mlx's multimodal batch generator on text only, and compares rows with solo runs."""

from collections.abc import Sequence
from typing import Any

from ....probes.kit import NotApplicable, Result, Target, module_of, mx
from ....probes.vllm_scheduler import WINDOW, build_sliding_llama

_TOKENS = 6
# One prompt within the window, one past it.
_PROMPTS = ([5, 6, 7], [1 + (7 * i) % 90 for i in range(WINDOW + 5)])


def probe(target: Target) -> Result:
    """Red if the batch raises, or a row's answer differs from its solo run."""
    generators = module_of(target)
    cuts = hasattr(generators.MLLMBatchGenerator, "_trim_rotating_caches")
    if cuts != target.name.endswith("_trim_rotating_caches"):
        raise NotApplicable("this release has another defect here, or none")
    model = build_sliding_llama()
    try:
        batched = run_batch(generators, model, _PROMPTS)
    except ValueError as error:
        if "does not yet support batching" in str(error):  # no sliding layers in batches yet
            raise NotApplicable(str(error)) from error
        raise
    solo = [run_solo(model, prompt) for prompt in _PROMPTS]
    return Result(batched != solo, f"{batched}, solo {solo}")


def run_batch(generators: Any, model: Any, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    """Each prompt's greedy answer, in one batch of the release's generator."""

    class Encoded(generators.MLLMBatchGenerator):  # type: ignore[misc]
        def _preprocess_request(self, request: Any) -> None:
            request.input_ids = mx.array([[int(word) for word in request.prompt.split()]])

    generator = Encoded(_Multimodal(model), None)
    requests = [
        generators.MLLMBatchRequest(
            -1, str(i), " ".join(map(str, prompt)), max_tokens=_TOKENS, temperature=0.0
        )
        for i, prompt in enumerate(prompts)
    ]
    generator.insert(requests)
    for _ in range(2 * _TOKENS):
        if all(len(request.output_tokens) == _TOKENS for request in requests):
            break
        generator.next()
    return [request.output_tokens for request in requests]


def run_solo(model: Any, prompt: Sequence[int]) -> list[int]:
    cache, tokens = model.make_cache(), mx.array([prompt])
    answer: list[int] = []
    for _ in range(_TOKENS):
        tokens = mx.argmax(model(tokens, cache=cache)[:, -1], axis=-1)[:, None]
        answer.append(int(tokens.item()))
    return answer


class _Multimodal:
    """A multimodal model that gets no images."""

    config = None

    def __init__(self, language_model: Any):
        self.language_model = language_model

    def __call__(self, input_ids: Any, cache: Any = None, **_: Any) -> Any:
        return self.language_model(input_ids, cache=cache)
