"""Merges Mamba caches with a history, asks for masks, and decodes a row that leaves its batch."""

from __future__ import annotations

import importlib
from typing import Any

from ..core.patch import Target
from . import NotApplicable, Result
from .recurrent_padding import difference

_SLOTS = 2
_LENGTHS = [1, 3]
_PROMPTS = [[5, 9, 2], [7, 3, 8]]
# Two: a row that is read and never written is right for one.
_NEXT = [4, 6]
_TOLERANCE = 1e-5


def probe(target: Target) -> Result:
    """Red where rows are lost on the way into a batch or out of it."""
    kind = getattr(importlib.import_module(target.module), "MambaCache", None)
    operation = target.name.rpartition(".")[2]
    if not hasattr(kind, operation):
        raise NotApplicable("this release has no such caches, or does not batch them")
    problem = merge_rows(kind) if operation == "merge" else decode_extracted()
    return Result(bool(problem), problem or "the rows are what they were")


def merge_rows(kind: Any) -> str:
    """What is wrong with a batch of rows with a history: its states, or its masks."""
    batch = kind.merge([write_row(kind, row) for row in range(len(_LENGTHS))])
    held = [state.reshape(-1).tolist() for state in batch.cache]
    if held != [list(range(len(_LENGTHS)))] * _SLOTS:
        return f"the batch holds {held}"
    longest = max(_LENGTHS)
    try:
        if batch.make_mask(longest) is not None:
            return "rows without padding are masked"
        batch.prepare(lengths=_LENGTHS)
        mask = batch.make_mask(longest).tolist()
    except ValueError as error:
        return str(error)
    wanted = [[i < length for i in range(longest)] for length in _LENGTHS]
    return "" if mask == wanted else f"mask of right padding {mask}, not {wanted}"


def write_row(kind: Any, number: int) -> Any:
    """A row whose states are all this number."""
    import mlx.core as mx

    cache = kind()
    for slot in range(_SLOTS):
        cache[slot] = mx.full((1, 1), number)
    return cache


def decode_extracted() -> str:
    """What is wrong with the logits of a row of a tiny Mamba that leaves its batch."""
    from ..lab import Family, NotBuilt
    from ..lab.build import build

    try:
        model: Any = build(Family("mlx-lm", "mamba")).module
    except NotBuilt as reason:
        raise NotApplicable(str(reason)) from None
    rows = [model.make_cache() for _ in _PROMPTS]
    for cache, prompt in zip(rows, _PROMPTS, strict=True):
        decode(model, cache, prompt)
    batch = [layers[0].merge(list(layers)) for layers in zip(*rows, strict=True)]
    for idx, alone in enumerate(rows):
        row = [layer.extract(idx) for layer in batch]
        if any(layer.make_mask(1) is not None for layer in row):
            return f"row {idx} is masked"
        for step, token in enumerate(_NEXT):
            seen, wanted = (decode(model, cache, [token]) for cache in (row, alone))
            if not difference([seen], [wanted]) <= _TOLERANCE:
                return f"row {idx} has other logits than alone, {step} tokens after it left"
    return ""


def decode(model: Any, cache: Any, tokens: list[int]) -> Any:
    """The logits (vocabulary,) of what comes after these tokens."""
    import mlx.core as mx

    return model(mx.array([tokens]), cache=cache)[0, -1]
