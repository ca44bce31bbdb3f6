"""Reads tokens of a tiny model, and the default stream between them and after it is left."""

from __future__ import annotations

import importlib
from threading import Thread
from typing import Any

from ..core.patch import Target
from . import Result


def probe(target: Target) -> Result:
    """Red where a reader's stream is another one, or the generation cannot be left."""
    import mlx.core as mx

    from ..lab import Family
    from ..lab.build import build

    model = build(Family("mlx-lm", "llama")).module
    models = [model, model] if target.name.startswith("speculative") else [model]
    device = mx.default_device()
    before = mx.default_stream(device)
    faults = []

    def begin() -> Any:
        generate = getattr(importlib.import_module(target.module), target.name)
        tokens = generate(mx.array([5, 9, 2, 7]), *models, max_tokens=6)
        next(tokens)
        return tokens

    def leave(tokens: Any) -> None:
        try:
            tokens.close()
        except RuntimeError as error:
            faults.append(str(error))

    try:
        tokens = begin()
        if mx.default_stream(device) != before:
            faults.append("another default stream between two tokens")
        tokens.close()
        other = Thread(target=leave, args=(begin(),))
        other.start()
        other.join()
        if mx.default_stream(device) != before:
            faults.append("another default stream after a generation was left")
    finally:
        mx.set_default_device(device)
        mx.set_default_stream(before)
    return Result(bool(faults), "; ".join(faults) or "the default stream stays")
