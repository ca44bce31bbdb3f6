"""Reads a batch in two pieces, and between them what stores the deltas of fewer rows."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from ....core.patch import Target
from ....lab import EXACT, engine
from ....probes import NotApplicable, Result
from ....probes.batch_invariance import relative, tiny

PIECES = (((5, 9), (2, 7), (3, 8)), ((4, 6), (1, 3), (8, 5)))
OTHERS = ((7, 2, 9), (6, 1, 4))


def probe(target: Target) -> Result:
    """Red where the second piece fails, or its logits differ from those of the pieces alone."""
    worst = 0.0
    for model, between in cases(target.distribution):
        alone = read(model, lambda: None)
        worst = max(worst, relative(read(model, between), alone))
    return Result(not worst <= EXACT.logits, f"differs by {worst:.2g} of the logits' scale", worst)


def cases(distribution: str) -> list[tuple[Any, Callable[[], None]]]:
    """The lab's models that run the target's call on texts, and what comes between the pieces.

    Raises:
        NotApplicable: the release has none of them.
    """
    minicpm = tiny(distribution, "minicpmv4_6")
    found = [(minicpm, lambda: embed(minicpm)), (minicpm, lambda: decode(minicpm))]
    try:
        text = tiny(distribution, "qwen3_5_text")
    except NotApplicable:  # releases before 0.7.1 have none
        return found
    return [*found, (text, lambda: decode(text))]


def embed(model: Any) -> None:
    """Embed the prompts of other rows."""
    import mlx.core as mx

    kind = importlib.import_module("mlx_vlm.models.minicpmv4_6.minicpmv4_6").Model
    kind._set_position_state(SimpleNamespace(language_model=model.module), mx.array(OTHERS))


def decode(model: Any) -> None:
    """Feed other rows a token, with their deltas, as the engine does."""
    import mlx.core as mx

    cache = engine.batch_cache(model, [0] * len(OTHERS))
    deltas = mx.zeros((len(OTHERS), 1), mx.int32)
    model.call(mx.array([row[:1] for row in OTHERS]), cache, rope_deltas=deltas)


def read(model: Any, between: Callable[[], None]) -> Any:
    """The logits of the batch's second piece, after a call of ``between``."""
    import mlx.core as mx

    engine.forget(model)
    cache = engine.batch_cache(model, [0] * len(PIECES[0]))
    first, second = (mx.array(piece) for piece in PIECES)
    model.call(first, cache)
    between()
    return model.call(second, cache)
