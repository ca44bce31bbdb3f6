"""Feeds a batch in two chunks, with a call between them that stores deltas of fewer rows."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from ....lab import EXACT, engine
from ....probes.kit import NotApplicable, Result, Target, import_module, measure_distance, mx, tiny

CHUNKS = (((5, 9), (2, 7), (3, 8)), ((4, 6), (1, 3), (8, 5)))
OTHERS = ((7, 2, 9), (6, 1, 4))


def probe(target: Target) -> Result:
    """Red if the second chunk raises, or its logits depend on the call in between."""
    worst = 0.0
    for model, between in list_cases(target.distribution):
        solo = feed_chunks(model, lambda: None)
        worst = max(worst, measure_distance(feed_chunks(model, between), solo))
    return Result(not worst <= EXACT.logits, f"differs by {worst:.2g} of the logits' scale", worst)


def list_cases(distribution: str) -> list[tuple[Any, Callable[[], None]]]:
    """The lab's models that run the target's call on texts, and the call between the chunks."""
    minicpm = tiny(distribution, "minicpmv4_6")
    found = [(minicpm, lambda: _embed(minicpm)), (minicpm, lambda: decode(minicpm))]
    try:
        text = tiny(distribution, "qwen3_5_text")
    except NotApplicable:  # releases before 0.7.1 have none
        return found
    return [*found, (text, lambda: decode(text))]


def _embed(model: Any) -> None:
    kind = import_module("mlx_vlm.models.minicpmv4_6.minicpmv4_6").Model
    kind._set_position_state(SimpleNamespace(language_model=model.module), mx.array(OTHERS))


def decode(model: Any) -> None:
    """Feed other rows a token, with their deltas, as the engine does."""
    cache = engine.batch_cache(model, [0] * len(OTHERS))
    deltas = mx.zeros((len(OTHERS), 1), mx.int32)
    model.call(mx.array([row[:1] for row in OTHERS]), cache, rope_deltas=deltas)


def feed_chunks(model: Any, between: Callable[[], None]) -> Any:
    engine.forget(model)
    cache = engine.batch_cache(model, [0] * len(CHUNKS[0]))
    first, second = (mx.array(chunk) for chunk in CHUNKS)
    model.call(first, cache)
    between()
    return model.call(second, cache)
