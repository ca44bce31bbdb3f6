"""A model that treats ``cache.offset`` as a scalar fails on a batch, or mixes its rows' positions.

Why
    These models compute positions, masks or slices of a table from ``cache.offset`` as a
    number. A batch's cache has an array there, one offset a row: ``int()``, ``.item()``,
    ``arange`` and reshapes of it raise, and code that does not raise uses one row's position for
    all rows.
How
    All rows go through the model in one call. The model's layers are copied for the call, with
    parts that use each row's own offset: rotations, masks of chunks and windows, scales that
    depend on the position. A model that takes position ids is given each row's own. Nothing is
    read from the device.

    Rows are fed one by one in these calls: prompts of Cohere Compass, Ernie 4.5 VL or Hunyuan VL
    in one batch with an image (its positions depend on the row's tokens); prompts of Hunyuan VL
    that come as embeddings while the model has position ids of some prompt, which may be an
    image's; a prompt of Falcon OCR with an image after the row's beginning, or in one batch with
    texts (a host does not say whose the image is); a prompt of these four with a mask of the
    host's; every call of Falcon OCR before mlx-vlm 0.5.0 (its tables hold positions that all rows
    share); and every call of Falcon Perception (it keeps its detections on the model, and reads
    each token from the device). Each row then goes through the model with its own cache,
    extracted from the batch; the new keys and values enter the batch's caches together. Every
    output is joined, and arguments that the patch does not know are passed on.

    Feeding rows one by one is a debt: a batched call costs one model call and one copy of the
    keys and values for each row, and one device read for the rows' offsets. The copies are freed
    once the step is evaluated. In every release, Cohere Compass itself multiplies by its weights
    one row at a time.
Upstream
    mlx-vlm fixes the families one by one: moondream3 and mllama in 0.5.0, hunyuan_vl in 0.6.5.
Retire when
    None of these families is red in the lab.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from ....core.patch import Patch, Target, around
from ..._shared import rows as cache_rows
from ..._shared.row_caches import Update, counts_rows, enter_updates, record_updates, take_row
from ..._shared.row_calls import (
    RowPart,
    bind_call,
    find_argument,
    find_shape,
    join_outputs,
    slice_call,
)
from ..._shared.targets import at, vlm_models
from . import (
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
from .offsets import Factory, with_rows

# Model attribute that caches the last prompt's position ids.
POSITIONS = "_position_ids"
# Model attribute with the rope deltas that the engine reads after a prompt, for decode steps.
DELTAS = "_rope_deltas"
# A batch-wide argument without boundaries between rows.
FEATURES = "deepstack_visual_embeds"


def call_per_row(call: Callable[..., Any]) -> Callable[..., Any]:
    """The model's call, which feeds the rows one at a time if the caches are a batch's."""
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


def split_batch(bound: inspect.BoundArguments) -> tuple[list[Any], list[RowPart]] | None:
    """A batch's caches, with their counts in host memory, and each row's part of a call.

    None for a call that is left to the release: one without a batch's caches, with an argument
    that cannot be split into rows, or without a token in any row. Reads the device once.
    """
    cache, shape = find_argument(bound, "cache"), find_shape(bound)
    if not cache or shape is None or find_argument(bound, FEATURES) is not None:
        return None
    layers = list(cache_rows.flatten_caches(cache))
    counting = next((layer for layer in layers if counts_rows(layer)), None)
    # This patch knows no model that has a layer without keys and values.
    if counting is None or not all(hasattr(layer, "update_and_fetch") for layer in layers):
        return None
    held = cache_rows.hold_counts(cache)
    first = next(layer for layer in cache_rows.flatten_caches(held) if counts_rows(layer))
    parts = find_parts(first, shape)
    return (held, parts) if any(part.span[0] < part.span[1] for part in parts) else None


def find_parts(layer: Any, shape: tuple[int, int]) -> list[RowPart]:
    """Each row's part of a call; empty if the cache's number of rows is not the call's.

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
        start = min(length, max(0, -offset))  # a negative offset is padding still to come
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
    """Feed each row by itself, and return the output of the batch.

    Args:
        call: the model's own call.
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
            put_attribute(model, POSITIONS, slice_positions(saved, part))
            if part.span[0] == part.span[1]:
                outputs.append(None)
                left.append(None)
                continue
            given = slice_deltas(deltas, part)
            put_attribute(model, DELTAS, given)
            one = slice_call(bound, part, own)
            outputs.append(call(*one.args, **one.kwargs))
            own_delta = getattr(model, DELTAS, None)
            left.append(None if own_delta is given else own_delta)
        if any(delta is not None for delta in left):
            deltas = join_deltas(left, deltas)
    finally:
        put_attribute(model, POSITIONS, saved)
        put_attribute(model, DELTAS, deltas)
    batch = cache_rows.flatten_caches(cache)
    for layer, new in zip(batch, zip(*updates, strict=True), strict=True):
        enter_updates(layer, new)
    return join_outputs(outputs, [part.span for part in parts], parts[0].shape)


def slice_positions(positions: Any, part: RowPart) -> Any:
    """A row's part of the position ids cached on the model; None if they are of other rows."""
    rows = part.shape[0]
    if rows == 1 or positions is None:
        return positions
    return positions[part.row : part.row + 1] if positions.shape[0] == rows else None


def put_attribute(model: Any, name: str, value: Any) -> None:
    """Set an attribute of the model; None adds none to a model without it."""
    if getattr(model, name, None) is not value:
        setattr(model, name, value)


def slice_deltas(deltas: Any, part: RowPart) -> Any:
    """A row's part of the deltas on the model; all of them if they are not one a row."""
    rows = part.shape[0]
    if rows == 1 or not getattr(deltas, "ndim", 0) or deltas.shape[0] != rows:
        return deltas
    return deltas[part.row : part.row + 1]


def join_deltas(rows: Sequence[Any], before: Any) -> Any:
    """Join the deltas that the rows' calls left on the model: (rows,) or (rows, 1), as theirs.

    Args:
        rows: each row's delta; None if its call left none.
        before: the deltas of all rows on the model before the calls.
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


# For each family of mlx-vlm, the factory of its model's call: one call for all rows, as far as the
# family's ``prepare`` repairs it.
FACTORIES: dict[str, Factory] = {
    "afm7": with_rows(afm7.prepare),
    "cohere_compass": with_rows(cohere_compass.prepare, call_per_row),
    "deepseek_vl_v2": with_rows(deepseek_vl_v2.prepare),
    "ernie4_5_moe_vl": with_rows(ernie4_5_moe_vl.prepare, call_per_row),
    "falcon_ocr": with_rows(falcon_ocr.prepare, call_per_row),
    "falcon_perception": call_per_row,
    "hunyuan_vl": with_rows(
        hunyuan_vl.prepare, lambda call: call_per_row(hunyuan_vl.forget_computed(call))
    ),
    "limite": with_rows(limite.prepare),
    "llama4": with_rows(llama4.prepare),
    "mllama": with_rows(mllama.prepare),
    "moondream3": with_rows(moondream3.prepare),
}
# The functions whose fingerprints show the defect, where the model's call is the same without it.
BODIES = {"moondream3": ("LanguageModel.__call__", "Attention.__call__")}

PATCH = Patch(
    id="row-by-row",
    summary="AFM 7, Falcon OCR, Hunyuan VL, Llama 4 and others crash in a batch, or mix its rows",
    targets=(
        Target("mlx-lm", "mlx_lm.models.afm7", "Model.__call__", FACTORIES["afm7"]),
        *(
            Target(*place, "LanguageModel.__call__", factory, BODIES.get(family, ()))
            for family, factory in FACTORIES.items()
            for place in vlm_models(family)
        ),
        *at(vlm_models("limite"), {"_causal_window_mask": around(limite.masked)}, supports=True),
    ),
    probe="mlx_patches.probes.model_batch:whole",
)
