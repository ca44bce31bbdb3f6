"""Compare the rows of a walk with solo runs that are fed the engine's tokens."""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...core.arrays import mx
from ...evidence.words import RED
from .. import Cell, LabModel, engine, rows
from ..compare import compare_generated
from ..engine_scenarios import penalize
from ..generators import limit_caches
from .engines import Row

# Tolerance for quantized keys: rounding noise can move a value by one 8-bit step.
QUANTIZED = 4e-2


def check(model: LabModel, options: Mapping[str, int], row: Row) -> str:
    """Describe how the row differs from its solo run; empty if it matches."""
    limited = "max_kv_size" in options
    exact = not (limited or "kv_bits" in options or row.quantized or row.image is not None)
    # A single call with the whole text is fastest, but may itself differ from chunked prefill.
    if exact and _compare(model, options, row, _at_once(model, row)).verdict != RED:
        return ""
    chunks = _chunk_sizes(model, options, row)
    # A limited cache drops tokens, so the right result depends on the chunks.
    sizes = chunks if limited else [len(row.whole)]
    try:
        cell = _compare(model, options, row, _run_chunks(model, options, row, sizes))
    except Exception:
        if row.quantized:  # a solo run fails too: nothing to compare with
            return ""
        if "kv_bits" not in options:
            raise
        # Some families support prefill with quantized caches only in a batch.
        chunks = [1] * len(row.whole)
        cell = _compare(model, options, row, _run_chunks(model, options, row, chunks))
    if cell.verdict != RED:
        return ""
    failure = f"row {row.number}, {cell.detail.removeprefix('row 0, ')}"
    if not limited:
        again = _compare(model, options, row, _run_chunks(model, options, row, chunks))
        failure += "; a solo run in the engine's chunks does too" * (again.verdict != RED)
    return failure


def _compare(model: LabModel, options: Mapping[str, int], row: Row, logits: Sequence[Any]) -> Cell:
    tolerance = model.tolerance
    if row.quantized or "kv_bits" in options:
        tolerance = replace(tolerance, logits=QUANTIZED, margin=QUANTIZED)
    return compare_generated([row.output], [logits], tolerance, [row.rank])


def _at_once(model: LabModel, row: Row) -> list[Any]:
    text = row.whole + row.tokens[:-1]
    engine.forget(model)
    places = [range(len(text))] if len(text) > 1 else None
    positions = engine.position_kwargs(model, [0], places, True, [None])
    logits = model.call(mx.array([text]), model.make_cache(), **positions)[0]
    return _process(row, list(logits[len(row.whole) - 1 :]))


def _run_chunks(
    model: LabModel, options: Mapping[str, int], row: Row, sizes: Sequence[int]
) -> list[Any]:
    """The same logits from a batch of one, with a chunked prefill of these sizes."""
    text, start = row.whole + row.tokens, len(row.whole)
    one = rows.Row(tuple(text), (start,), image=row.image)
    cache = _cache(model, options)
    engine.forget(model)  # also the state left by creating the caches
    if row.quantized:
        rows.feed(model, [one], cache, row.quantized)
        cache = [as_in_a_batch(layer) for layer in quantize_layers(cache)]
        sizes = [start - row.quantized]
    for size in [*sizes, *[1] * (len(row.output) - 1)]:
        rows.feed(model, [one], cache, size)
    logits = [one.logits[start - 1 + index] for index in range(len(row.output))]
    return _process(row, logits)


def _process(row: Row, logits: Sequence[Any]) -> list[Any]:
    if not row.processor:
        return list(logits)
    texts = (mx.array(row.whole + row.tokens[:index]) for index in range(len(logits)))
    return [penalize(text, one[None])[0] for text, one in zip(texts, logits, strict=True)]


def _cache(model: LabModel, options: Mapping[str, int]) -> list[Any]:
    if "max_kv_size" in options:
        return limit_caches(model, options["max_kv_size"])()
    # A quantized cache would keep answer tokens that the model's default cache drops.
    if "kv_bits" in options and engine.answer_window(model) is None:
        makers = engine.quantize_caches(model, [0], options["kv_bits"])[1]
        try:
            model.call([[1]], [make() for make in makers])
        except Exception:
            return model.make_cache()  # a patched engine keeps floats; an unpatched one raises
        return [make() for make in makers]
    return model.make_cache()


def _chunk_sizes(model: LabModel, options: Mapping[str, int], row: Row) -> list[int]:
    segments = [len(one) for one in row.segments]
    if segments[-1] > 1 and engine.settles(model):
        segments[-1:] = [segments[-1] - 1, 1]
    longest = options.get("prefill_step_size", 2048)
    parts = [len(row.history), *segments]
    return [size for part in parts for size in rows.chunk_sizes(part, longest)]


def quantize_layers(cache: Sequence[Any]) -> list[Any]:
    return [
        layer.to_quantized(group_size=engine.GROUP, bits=8)
        if type(layer).__name__ == "KVCache" and layer.keys is not None
        else layer
        for layer in cache
    ]


def as_in_a_batch(layer: Any) -> Any:
    """A row's layer in the form its batch uses: floats, if batches are not quantized.

    Quantized tokens have lost precision; later tokens are stored as floats.
    """
    merge = getattr(type(layer), "merge", None)
    if type(layer).__name__ != "QuantizedKVCache" or merge is None:
        return layer
    if "Quantized" in type(merge([layer])).__name__:
        return layer
    floats = importlib.import_module(type(layer).__module__).KVCache()
    floats.offset = layer.offset
    floats.keys, floats.values = (
        mx.dequantize(
            *(part[..., : layer.offset, :] for part in held), layer.group_size, layer.bits
        )
        for held in (layer.keys, layer.values)
    )
    return floats
