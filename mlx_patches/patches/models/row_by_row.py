"""A model that treats ``cache.offset`` as a scalar fails on a batch, or mixes its rows' positions.

Why
    These models compute positions, masks or slices of a table from ``cache.offset`` as a
    number. A batch's cache has an array there, one offset a row: ``int()`` of it, ``.item()``,
    ``arange`` and a reshape raise, and what does not raise uses one row's position for all.
How
    The rows go through the model in one call. Its layers are copied for the call, with parts
    that know each row's offset: rotations, masks of chunks and windows, scales that grow with
    the position. Where the model takes position ids, it is given those. Nothing is read from
    the device.

    Rows go one by one where a prompt of Cohere Compass, Ernie 4.5 VL or Hunyuan VL has an image,
    whose positions depend on the tokens of its row, or a mask of the host's; for any prompt of
    Falcon OCR; and for all calls of Falcon OCR before mlx-vlm 0.5.0, whose tables are of
    positions that all rows share, and of Falcon Perception, which keeps what it detects on the
    model and reads each token from the device. Each row then goes through the model with its
    own cache, taken from the batch; the keys and values that are new enter the batch's caches
    together. Every output is joined, and arguments that the patch does not know are passed on.

    Row by row is a debt: a call costs one call of the model and one copy of its keys and values
    a row, and one device read for the rows' offsets. The copies are gone once the step is
    evaluated. Cohere Compass multiplies each row by its weights by itself in any release.
Upstream
    mlx-vlm repairs them one by one: moondream3 and mllama in 0.5.0, hunyuan_vl in 0.6.5.
Retire when
    None of these families is red in the lab.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from ...core.patch import Patch, Target
from ..caches import rows as cache_rows
from .batched import (
    afm7,
    cohere_compass,
    deepseek_vl_v2,
    ernie4_5_moe_vl,
    falcon_ocr,
    hunyuan_vl,
    limite,
    llama4,
    mllama,
    moondream3,
)
from .batched.offsets import Factory, with_rows
from .row_caches import Update, counts_rows, enter_updates, record_updates, take_row
from .row_calls import (
    RowPart,
    bind_call,
    find_argument,
    find_shape,
    join_outputs,
    slice_call,
)

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
# Model attribute that caches the last prompt's position ids.
POSITIONS = "_position_ids"
# Model attribute that the engine reads after a prompt: what its rows decode with.
DELTAS = "_rope_deltas"
# A batch-wide argument without boundaries between rows.
FEATURES = "deepstack_visual_embeds"
# Families that take a batch's rows in one call of the model.
BATCHED: dict[str, Any] = {
    "afm7": afm7,
    "deepseek_vl_v2": deepseek_vl_v2,
    "limite": limite,
    "llama4": llama4,
    "mllama": mllama,
    "moondream3": moondream3,
}
# Families that do so for text and decode steps: an image's positions depend on its row's tokens.
STEPPED: dict[str, Any] = {
    "cohere_compass": cohere_compass,
    "ernie4_5_moe_vl": ernie4_5_moe_vl,
    "falcon_ocr": falcon_ocr,
    "hunyuan_vl": hunyuan_vl,
}
# Where the language model's call is the same in releases with the defect and without.
BODIES = {"moondream3": ("LanguageModel.__call__", "Attention.__call__")}


def call_per_row(call: Callable[..., Any]) -> Callable[..., Any]:
    """The model's call, which feeds the rows one at a time where the caches are a batch's."""
    signature = inspect.signature(call)

    @functools.wraps(call)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        bound = bind_call(signature, args, kwargs)
        split = None if bound is None else split_batch(bound)
        if bound is None or split is None:
            return call(*args, **kwargs)
        layers, parts = split
        return forward_per_row(call, bound, layers, parts)

    return replacement


def make_factory(family: str) -> Factory:
    """What takes a family's batches: one call of the model, as far as it is repaired."""
    if family in BATCHED:
        return with_rows(BATCHED[family].prepare)
    if family in STEPPED:
        return with_rows(STEPPED[family].prepare, call_per_row)
    return call_per_row


def split_batch(bound: inspect.BoundArguments) -> tuple[list[Any], list[RowPart]] | None:
    """A batch's caches, to take rows from, and each row's part of a call.

    None for a call that the release has to take itself: without a batch's caches, with an
    argument that cannot be divided, or with no token of any row. Reads the device once.
    """
    cache, shape = find_argument(bound, "cache"), find_shape(bound)
    if not cache or shape is None or find_argument(bound, FEATURES) is not None:
        return None
    layers = list(cache_rows.flatten_caches(cache))
    counting = next((layer for layer in layers if counts_rows(layer)), None)
    # A layer without keys and values is of a model that this patch does not know.
    if counting is None or not all(hasattr(layer, "update_and_fetch") for layer in layers):
        return None
    held = cache_rows.hold_counts(cache)
    first = next(layer for layer in cache_rows.flatten_caches(held) if counts_rows(layer))
    parts = find_parts(first, shape)
    return (held, parts) if any(part.span[0] < part.span[1] for part in parts) else None


def find_parts(layer: Any, shape: tuple[int, int]) -> list[RowPart]:
    """Each row's part of a call; none where the cache has other rows than the call.

    Args:
        layer: a batch's cache, with its counts in host memory.
        shape: rows and positions of the call.
    """
    rows, length = shape
    offsets = layer.offset.tolist()
    if len(offsets) != rows:
        return []
    before = None if hasattr(layer, "max_size") else getattr(layer, "_idx", None)
    parts = []
    for row, offset in enumerate(offsets):
        start = min(length, max(0, -offset))  # what is left of the row's padding comes first
        keys = None
        if before is not None:
            keys = (before + length, before + start - max(0, offset))
        parts.append(RowPart(row, shape, (start, length), keys))
    return parts


def forward_per_row(
    call: Callable[..., Any],
    bound: inspect.BoundArguments,
    layers: Sequence[Any],
    parts: Sequence[RowPart],
) -> Any:
    """Feed each row by itself; what the batch's call would give.

    Args:
        call: the model's own.
        bound: its arguments for the batch.
        layers: the batch's caches, with their counts in host memory.
        parts: each row's part of the call.
    """
    model, cache = bound.args[0], find_argument(bound, "cache")
    saved, deltas = getattr(model, POSITIONS, None), getattr(model, DELTAS, None)
    left: list[Any] = []
    outputs: list[Any] = []
    updates: list[list[list[Update]]] = []
    try:
        for part in parts:
            own = [take_row(layer, part.row) for layer in layers]
            updates.append([record_updates(layer) for layer in cache_rows.flatten_caches(own)])
            if hasattr(model, POSITIONS):
                setattr(model, POSITIONS, slice_positions(saved, part))
            if part.span[0] == part.span[1]:
                outputs.append(None)
                left.append(None)
                continue
            given = slice_deltas(deltas, part)
            put_deltas(model, given)
            one = slice_call(bound, part, own)
            outputs.append(call(*one.args, **one.kwargs))
            own_delta = getattr(model, DELTAS, None)
            left.append(None if own_delta is given else own_delta)
        if any(delta is not None for delta in left):
            deltas = join_deltas(left, deltas)
    finally:
        if hasattr(model, POSITIONS):
            setattr(model, POSITIONS, saved)
        put_deltas(model, deltas)
    batch = cache_rows.flatten_caches(cache)
    for layer, new in zip(batch, zip(*updates, strict=True), strict=True):
        enter_updates(layer, new)
    return join_outputs(outputs, [part.span for part in parts], parts[0].shape)


def slice_positions(positions: Any, part: RowPart) -> Any:
    """A row's share of the positions that the model holds for a prompt; None where they are
    not just these rows'."""
    rows = part.shape[0]
    if rows == 1 or positions is None:
        return positions
    return positions[part.row : part.row + 1] if positions.shape[0] == rows else None


def put_deltas(model: Any, deltas: Any) -> None:
    """Have the model hold these deltas; one that knows none is left alone."""
    if getattr(model, DELTAS, None) is not deltas:
        setattr(model, DELTAS, deltas)


def slice_deltas(deltas: Any, part: RowPart) -> Any:
    """A row's share of the deltas that the model holds; all of them where it has no share."""
    rows = part.shape[0]
    if rows == 1 or not getattr(deltas, "ndim", 0) or deltas.shape[0] != rows:
        return deltas
    return deltas[part.row : part.row + 1]


def join_deltas(rows: Sequence[Any], before: Any) -> Any:
    """The deltas that calls of one row each left on the model: (rows,) or (rows, 1), as theirs.

    Args:
        rows: each row's; None where its call left none.
        before: what the model held for all of them.
    """
    import mlx.core as mx

    counted = getattr(before, "ndim", 0) and before.shape[0] == len(rows)
    kept = before.reshape(-1) if counted else mx.zeros(len(rows), mx.int32)
    own = [
        kept[row : row + 1] if delta is None else mx.array(delta).reshape(-1)[:1]
        for row, delta in enumerate(rows)
    ]
    flat = all(getattr(delta, "ndim", 1) == 1 for delta in rows)
    return mx.concatenate(own) if flat else mx.concatenate(own)[:, None]


_NAMES = {
    "mlx-lm": ("mlx_lm.models.{}", "Model.__call__"),
    "mlx-vlm": ("mlx_vlm.models.{}.language", "LanguageModel.__call__"),
}

PATCH = Patch(
    id="row-by-row",
    summary="the model treats cache.offset as a scalar: it fails on a batch, or mixes its rows",
    targets=(
        *(
            Target(
                distribution,
                module.format(family),
                name,
                make_factory(family),
                BODIES.get(family, ()),
            )
            for distribution, (module, name) in _NAMES.items()
            for family in FAMILIES[distribution]
        ),
        *limite.TARGETS,
    ),
    probe="mlx_patches.probes.model_batch:whole",
    module=__name__,
)
