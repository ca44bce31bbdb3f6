"""Batch invariance of tiny models: each row's logits in a batch and in a solo run."""

import importlib
import math
from collections.abc import Sequence
from typing import Any

from ..core.arrays import mx
from ..core.patch import Target
from . import NotApplicable, Result

TOLERANCE = 1e-3
# Every tiny model has at least this many tokens.
VOCABULARY = 64


def tiny(distribution: str, family: str, seed: int = 0, **fields: Any) -> Any:
    """The lab's tiny model of a family, with these fields in its text model's config."""
    from ..lab import Family, NotBuilt
    from ..lab.build import build

    def edit(config: dict[str, Any]) -> dict[str, Any]:
        text = config.get("text_config")
        return config | fields if text is None else config | {"text_config": text | fields}

    try:
        return build(Family(distribution, family), seed, edit=edit if fields else None)
    except NotBuilt as reason:
        raise NotApplicable(str(reason)) from reason


def family_of(target: Target) -> str:
    return target.module.split(".")[2]


def config_class(distribution: str, family: str) -> Any:
    """The class of a family's config; in mlx-vlm, of the whole model's."""
    if distribution == "mlx-lm":
        return importlib.import_module(f"mlx_lm.models.{family}").ModelArgs
    return importlib.import_module(f"mlx_vlm.models.{family}.config").ModelConfig


def tiny_of(target: Target) -> Any:
    return tiny(target.distribution, family_of(target))


def batch_cache(model: Any, padding: Sequence[int]) -> list[Any]:
    """The caches of a left-padded batch, even in a release without a batch engine."""

    def to_batch(layer: Any) -> Any:
        caches, kind = importlib.import_module(type(layer).__module__), type(layer).__name__
        if kind == "KVCache":
            return caches.BatchKVCache(list(padding))
        if kind == "RotatingKVCache":
            return caches.BatchRotatingKVCache(layer.max_size, list(padding))
        raise NotApplicable(f"no batch cache for {kind}")

    return [to_batch(layer) for layer in model.make_cache()]


def measure_batch(
    model: Any, prompts: Sequence[Sequence[int]], continuations: Sequence[Sequence[int]]
) -> float:
    """The largest absolute difference of logits over rows and steps; NaN if any is NaN.

    The prompts are prefilled as one left-padded batch. Then each step feeds every row the next
    token of its continuation.
    """
    longest = max(map(len, prompts))
    padding = [longest - len(prompt) for prompt in prompts]
    padded = [[0] * pad + list(prompt) for pad, prompt in zip(padding, prompts, strict=True)]
    batched = _run_rows(model, batch_cache(model, padding), padded, continuations)
    distances: list[float] = []
    for row, (prompt, continuation) in enumerate(zip(prompts, continuations, strict=True)):
        solo = _run_rows(model, model.make_cache(), [list(prompt)], [continuation])
        for here, there in zip(batched, solo, strict=True):
            distances.append(mx.abs(here[row] - there[0]).max().item())
    return find_largest(distances)


def _run_rows(
    model: Any, cache: list[Any], prompts: list[list[int]], continuations: Sequence[Sequence[int]]
) -> list[Any]:
    """The rows' last logits after the prompts, and after each step."""
    outputs = []
    steps = ([[token] for token in tokens] for tokens in zip(*continuations, strict=True))
    for tokens in (prompts, *steps):
        outputs.append(model.call(tokens, cache)[:, -1])
        mx.eval(outputs)
    return outputs


def measure_distance(actual: Any, expected: Any) -> float:
    """The largest difference of two arrays, relative to the scale of the second; may be NaN."""
    return float((mx.abs(actual - expected).max() / mx.abs(expected).max()).item())


def compare_arrays(actual: Any, expected: Any, tolerance: float, whose: str = "output's") -> Result:
    """Red if two arrays differ by more than a tolerance, relative to their scale."""
    worst = measure_distance(actual, expected)
    return Result(not worst <= tolerance, f"off by {worst:.2g} of the {whose} scale", worst)


def sum_experts(block: Any, x: Any, weights: Any) -> Any:
    everyone = mx.broadcast_to(mx.arange(weights.shape[-1]), weights.shape)
    return (block.switch_mlp(x, everyone) * weights[..., None]).sum(axis=-2)


def find_largest(figures: Sequence[float]) -> float:
    """The largest figure, or NaN if any is NaN, which ``max`` may skip."""
    return next(filter(math.isnan, figures), max(figures))


def measure(model: Any, lengths: Sequence[int] = (5, 9), steps: int = 12) -> Result:
    """Red if a batch of random prompts of these lengths differs from the rows' solo runs."""
    prompts, continuations = random_rows(lengths, steps)
    figure = measure_batch(model, prompts, continuations)
    red = not figure <= TOLERANCE  # a NaN is red
    detail = f"largest logit difference, batch against solo: {figure:.3g}"
    return Result(red, detail, figure if math.isfinite(figure) else None)


def measure_each(model: Any, lengths: Sequence[Sequence[int]]) -> Result:
    """The first red result of batches of prompts of these lengths, or the first batch's result."""
    results = (measure(model, one) for one in lengths)
    first = next(results)
    return first if first.red else next((result for result in results if result.red), first)


def random_rows(lengths: Sequence[int], steps: int) -> tuple[list[list[int]], list[list[int]]]:
    """Draw prompts of these lengths and continuations of ``steps`` tokens, the same each time."""
    import random

    draw = random.Random(1)

    def tokens(count: int) -> list[int]:
        return [draw.randrange(1, VOCABULARY) for _ in range(count)]

    return [tokens(n) for n in lengths], [tokens(steps) for _ in lengths]


def compare_splits(model: Any, ways: Sequence[Sequence[int]]) -> float:
    """The largest difference of the last logits between the first split and the others."""
    ((text,), _) = random_rows([sum(ways[0])], 0)
    outputs = []
    for chunks in ways:
        cache, start = model.make_cache(), 0
        for size in chunks:
            logits = model.call([text[start : start + size]], cache)[0, -1]
            start += size
        outputs.append(logits)
    return find_largest([float(mx.abs(one - outputs[0]).max().item()) for one in outputs[1:]])
