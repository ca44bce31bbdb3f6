"""A model that takes the rows' offsets for one number dies in a batch, or mixes their positions.

Why
    These models compute positions, masks or slices of a table from ``cache.offset`` as a
    number. A batch's cache has an array there, one offset a row: ``int()`` of it, ``.item()``,
    ``arange`` and a reshape die, and what does not die uses one row's position for all.
How
    The rows go through the model one at a time, each with its own cache taken from the batch;
    the keys and values that are new then enter the batch's caches together. Slower than a
    batch, and the only way that asks nothing of the model.
Upstream
    mlx-vlm repairs them one by one: moondream3 and mllama in 0.5.0, hunyuan_vl in 0.6.5.
Retire when
    None of these families is red in the lab.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from ...core.patch import Patch, Target
from ..caches import rows as cache_rows
from ..caches.plain.empty import make_empty_row as row_of

FAMILIES = {
    "mlx-lm": ("afm7",),
    "mlx-vlm": (
        "afm7",
        "cohere_compass",
        "deepseek_vl_v2",
        "ernie4_5_moe_vl",
        "falcon_ocr",
        "falcon_perception",
        "hunyuan_vl",
        "limite",
        "llama4",
        "mllama",
        "moondream3",
    ),
}
# Where some of them keep the positions of the prompt that they were last given.
POSITIONS = "_position_ids"
# An argument of the whole batch, of which nobody knows whose row is where.
FEATURES = "deepstack_visual_embeds"
# Where the language model's call is the same in releases with the defect and without.
BODIES = {"moondream3": ("LanguageModel.__call__", "Attention.__call__")}


def one_at_a_time(call: Callable[..., Any]) -> Callable[..., Any]:
    """The model's call, a row at a time where the caches are a batch's."""
    signature = inspect.signature(call)

    @functools.wraps(call)
    def replacement(model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(model, inputs, *args, **kwargs)
        cache = bound.arguments.get("cache")
        if not cache or not any(map(of_batch, flat(cache))):
            return call(model, inputs, *args, **kwargs)
        given = {
            name: value
            for name, value in {**bound.arguments, **bound.arguments.pop("kwargs", {})}.items()
            if name not in list(signature.parameters)[:2]
        }
        if given.get(FEATURES) is not None:
            return call(model, inputs, *args, **kwargs)
        return in_turn(call, model, inputs, cache, given)

    return replacement


def flat(caches: Sequence[Any]) -> list[Any]:
    """The caches of every layer, those inside a list of caches too."""
    return [layer for cache in caches for layer in getattr(cache, "caches", (cache,))]


def of_batch(layer: Any) -> bool:
    """Whether a cache counts each row's tokens."""
    return bool(getattr(getattr(layer, "offset", 0), "ndim", 0))


def in_turn(
    call: Callable[..., Any], model: Any, inputs: Any, cache: Sequence[Any], given: dict[str, Any]
) -> Any:
    """Every row's output, in the batch's layout."""
    rows, length = inputs.shape[:2]
    timed = next(layer for layer in flat(cache) if of_batch(layer))
    kinds = model.make_cache() if hasattr(model, "make_cache") else cache
    parked = getattr(model, POSITIONS, None)
    outputs, given_by = [], []
    try:
        for row, offset in enumerate(timed.offset.tolist()):
            # What is left of the row's padding comes first.
            skipped = min(length, max(0, -offset))
            pairs = zip(cache, kinds, strict=True)
            own = [in_chunks(solo(layer, row), like) for layer, like in pairs]
            given_by.append([recording(layer) for layer in flat(own)])
            if hasattr(model, POSITIONS):
                setattr(model, POSITIONS, parked_of(parked, row, rows))
            if skipped < length:
                mine = {
                    name: of_row(value, row, (rows, length), skipped)
                    for name, value in given.items()
                }
                mine["cache"] = own
                outputs.append(call(model, inputs[row : row + 1, skipped:], **mine))
            else:
                outputs.append(None)
    finally:
        if hasattr(model, POSITIONS):
            setattr(model, POSITIONS, parked)
    for layer, updates in zip(flat(cache), zip(*given_by, strict=True), strict=True):
        enter(layer, updates)
    return together(outputs, length)


def parked_of(positions: Any, row: int, rows: int) -> Any:
    """A row's share of the positions that the model holds for a prompt; None where they are
    not just these rows'."""
    if rows == 1 or positions is None:
        return positions
    return positions[row : row + 1] if positions.shape[0] == rows else None


def solo(layer: Any, row: int) -> Any:
    """One row's cache out of a layer's; an empty one where the row had nothing but padding."""
    if hasattr(layer, "caches"):
        return type(layer)(*(solo(inner, row) for inner in layer.caches))
    if not of_batch(layer) or (layer.keys is not None and layer.offset[row].item() > 0):
        return layer.extract(row) if hasattr(layer, "extract") else cut_out(layer, row)
    return cache_rows.as_empty(layer, row_of(layer))


def in_chunks(own: Any, like: Any) -> Any:
    """A row's cache as one that attends in chunks, where the model's own does."""
    if not hasattr(like, "chunk_size") or hasattr(own, "chunk_size"):
        return own
    chunked = type(like)(like.chunk_size)
    chunked.keys, chunked.values, chunked.offset = own.keys, own.values, own.offset
    return chunked


def cut_out(layer: Any, row: int) -> Any:
    """What ``BatchKVCache.extract`` gives from mlx-lm 0.28.4 on."""
    own = row_of(layer)
    tokens = slice(layer.left_padding[row].item(), layer._idx)
    own.keys, own.values = (side[row : row + 1, :, tokens] for side in (layer.keys, layer.values))
    own.offset = own.keys.shape[2]
    return own


Update = tuple[Any, Any]


def recording(layer: Any) -> list[Update]:
    """The keys and values that a row's cache will be given."""
    given: list[Update] = []
    put = layer.update_and_fetch

    def update_and_fetch(keys: Any, values: Any) -> Any:
        given.append((keys, values))
        return put(keys, values)

    layer.update_and_fetch = update_and_fetch
    return given


def of_row(value: Any, row: int, shape: tuple[int, ...], skipped: int) -> Any:
    """An argument of the batch as one row's, less the padding in front.

    Args:
        shape: rows and tokens of the batch. Arguments have rows first, but for positions of
            three axes, and their tokens in the next axis of this size.
    """
    rows, length = shape
    sizes: tuple[int, ...] = getattr(value, "shape", ())
    if len(sizes) == 4:  # A batch's mask: the row makes its own.
        return None
    at = int(len(sizes) == 3 and sizes[:2] == (3, rows))
    if len(sizes) <= at or sizes[at] != rows:
        return value
    index = [slice(None)] * len(sizes)
    index[at] = slice(row, row + 1)
    tokens = [axis for axis in range(at + 1, len(sizes)) if sizes[axis] == length]
    if tokens:
        index[tokens[0]] = slice(skipped, None)
    return value[tuple(index)]


def enter(layer: Any, rows: Sequence[list[Update]]) -> None:
    """Give a layer of the batch what its rows were given, padding in front of the shorter."""
    import mlx.core as mx

    if not any(rows):
        return
    sides = [
        [mx.concatenate([pair[side] for pair in row], axis=2) if row else None for row in rows]
        for side in (0, 1)
    ]
    layer.update_and_fetch(*(mx.concatenate(in_line(side)) for side in sides))


def in_line(rows: Sequence[Any]) -> list[Any]:
    """The rows' new keys or values with zeros in front, all as long as the longest."""
    import mlx.core as mx

    like = max((row for row in rows if row is not None), key=lambda row: row.shape[2])
    _, heads, longest, width = like.shape
    return [
        mx.zeros((1, heads, longest, width), like.dtype)
        if row is None
        else mx.pad(row, [(0, 0), (0, 0), (longest - row.shape[2], 0), (0, 0)])
        for row in rows
    ]


def together(outputs: Sequence[Any], length: int) -> Any:
    """The rows' outputs as one."""
    import mlx.core as mx

    first = next(out for out in outputs if out is not None)
    logits = [getattr(out, "logits", out) for out in outputs]
    shape = getattr(first, "logits", first).shape
    joined = mx.concatenate(
        [
            mx.zeros((1, length, *shape[2:]))
            if one is None
            else mx.pad(one, [(0, 0), (length - one.shape[1], 0), (0, 0)])
            for one in logits
        ]
    )
    return dataclasses.replace(first, logits=joined) if hasattr(first, "logits") else joined


_NAMES = {
    "mlx-lm": ("mlx_lm.models.{}", "Model.__call__"),
    "mlx-vlm": ("mlx_vlm.models.{}.language", "LanguageModel.__call__"),
}

PATCH = Patch(
    id="row-by-row",
    summary="the model takes the rows' offsets for one number: it dies in a batch, or mixes rows",
    targets=tuple(
        Target(distribution, module.format(family), name, one_at_a_time, BODIES.get(family, ()))
        for distribution, (module, name) in _NAMES.items()
        for family in FAMILIES[distribution]
    ),
    probe="mlx_patches.probes.model_batch:whole",
    module=__name__,
)
