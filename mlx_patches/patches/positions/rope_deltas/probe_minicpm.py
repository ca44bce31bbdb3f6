"""Reads a batch in two pieces, and stores the positions of other prompts between them."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

from ....core.patch import Target
from ....probes import Result
from ....probes.batch_invariance import tiny

PIECES = (((5, 9), (2, 7), (3, 8)), ((4, 6), (1, 3), (8, 5)))
OTHERS = ((7, 2, 9), (6, 1, 4))


def probe(target: Target) -> Result:
    """Red where the second piece fails, or its logits differ from those without the others."""
    from ....lab import EXACT, engine

    model = tiny(target.distribution, target.module.split(".")[2])
    kind = importlib.import_module(target.module).Model
    try:
        alone, between = (read(model, kind, others) for others in ((), OTHERS))
    except Exception as error:
        return Result(True, engine.where(error))
    import mlx.core as mx

    apart = (mx.abs(between - alone).max() / mx.abs(alone).max()).item()
    return Result(not apart <= EXACT.logits, f"differs by {apart:.2g} of the logits' scale", apart)


def read(model: Any, kind: Any, others: Any) -> Any:
    """The logits of the batch's second piece.

    Args:
        model: the lab's model, whose language model runs.
        kind: the release's class of the whole model.
        others: the token ids of prompts that are embedded between the pieces.
    """
    import mlx.core as mx

    from ....lab import engine

    engine.forget(model)
    whole = SimpleNamespace(language_model=model.module)
    kind._set_position_state(whole, mx.array([a + b for a, b in zip(*PIECES, strict=True)]))
    cache = engine.batch_cache(model, [0] * len(PIECES[0]))
    first, second = (mx.array(piece) for piece in PIECES)
    model.call(first, cache)
    if others:
        kind._set_position_state(whole, mx.array(others))
    return model.call(second, cache)
