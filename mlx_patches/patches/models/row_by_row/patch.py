"""AFM 7, Falcon OCR, Hunyuan VL, Llama 4 and others crash in a batch, or mix its rows.

Why: These models use ``cache.offset`` as a number for positions, masks or slices of a table. In a
    batch it is an array with one offset per row: ``int()``, ``.item()``, ``arange`` and reshapes
    raise, and code that does not raise uses one row's position for all rows.
How: All rows go through the model in one call. The model's layers are copied for the call, with
    parts that use each row's offset: RoPE, masks of chunks and windows, position-dependent scales.
    Models that accept position ids get those of each row. The device is not read.

    Rows are fed one by one in these calls:

    - prompts of Cohere Compass, Ernie 4.5 VL or Hunyuan VL in a batch with an image, since its
      positions depend on the row's tokens;
    - prompts of Hunyuan VL passed as embeddings while the model has position ids of some prompt,
      which may be those of an image;
    - prompts of Falcon OCR with an image after the row's beginning, or in a batch with text
      prompts, since the host does not pass which row has the image;
    - prompts of these four with the host's mask;
    - every call of Falcon OCR before mlx-vlm 0.5.0, whose position tables are shared by all rows;
    - every call of Falcon Perception, which keeps detections on the model and reads each token
      from the device.

    Each row then goes through the model with its own cache, extracted from the batch, and the new
    keys and values are written to the batch's caches. All outputs are joined, and unknown
    arguments are passed on. A batched call then costs one model call and one copy of the keys and
    values per row, and one device read for the offsets. The copies are freed once the step is
    evaluated. In every release, Cohere Compass itself multiplies by its weights row by row.
Upstream: mlx-vlm fixes the families one by one: moondream3 and mllama in 0.5.0, hunyuan_vl in
    0.6.5.
Retire when: The lab is green for all of these families.
"""

import inspect
from collections.abc import Sequence
from typing import Any

from ....core.verbs import Function, Patch, define, lm_family, mx, vlm_family, wrap
from ..._shared import rows as cache_rows
from ..._shared.row_caches import Update, counts_rows, enter_updates, record_updates, take_row
from ..._shared.row_calls import (
    RowPart,
    by_name,
    find_argument,
    find_shape,
    join_outputs,
    slice_call,
)
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
from .offsets import Factory, call_prepared

# Model attribute that caches the last prompt's position ids.
POSITIONS = "_position_ids"
# Model attribute with the rope deltas that the engine reads after a prompt for the decode steps.
DELTAS = "_rope_deltas"
# A batch-wide argument without boundaries between rows.
FEATURES = "deepstack_visual_embeds"


@by_name
def call_per_row(call: Function, bound: inspect.BoundArguments) -> Any:
    """The model's call, which feeds the rows of a batch one by one."""
    split = split_batch(bound)
    return forward_per_row(call, bound, *split) if split else call(*bound.args, **bound.kwargs)


def split_batch(bound: inspect.BoundArguments) -> tuple[list[Any], list[RowPart]] | None:
    """Split a call by row: the caches, with their counts in host memory, and the rows' parts.

    None for a call that the release handles: without a batch's caches, with an argument that
    cannot be split by row, or without a token in any row. Reads the device once.
    """
    cache, shape = find_argument(bound, "cache"), find_shape(bound)
    if not cache or shape is None or find_argument(bound, FEATURES) is not None:
        return None
    layers = list(cache_rows.flatten_caches(cache))
    counting = next((layer for layer in layers if counts_rows(layer)), None)
    # None of these models has a layer without keys and values.
    if counting is None or not all(hasattr(layer, "update_and_fetch") for layer in layers):
        return None
    held = cache_rows.hold_counts(cache)
    first = next(layer for layer in cache_rows.flatten_caches(held) if counts_rows(layer))
    parts = find_parts(first, shape)
    return (held, parts) if any(part.span[0] < part.span[1] for part in parts) else None


def find_parts(layer: Any, shape: tuple[int, int]) -> list[RowPart]:
    """Each row's part of a call; empty if the cache and the call differ in their number of rows."""
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
    call: Function, bound: inspect.BoundArguments, layers: Sequence[Any], parts: Sequence[RowPart]
) -> Any:
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
    """A row's part of the model's cached position ids; None if their number of rows differs."""
    rows = part.shape[0]
    if rows == 1 or positions is None:
        return positions
    return positions[part.row : part.row + 1] if positions.shape[0] == rows else None


def put_attribute(model: Any, name: str, value: Any) -> None:
    """Set an attribute of the model; None adds none to a model without it."""
    if getattr(model, name, None) is not value:
        setattr(model, name, value)


def slice_deltas(deltas: Any, part: RowPart) -> Any:
    """A row's part of the deltas on the model; all of them if they are not one per row."""
    rows = part.shape[0]
    if rows == 1 or not getattr(deltas, "ndim", 0) or deltas.shape[0] != rows:
        return deltas
    return deltas[part.row : part.row + 1]


def join_deltas(rows: Sequence[Any], before: Any) -> Any:
    """Join the deltas that the rows' calls stored on the model, to (rows,) or (rows, 1)."""
    counted = getattr(before, "ndim", 0) and before.shape[0] == len(rows)
    kept = before.reshape(-1) if counted else mx.zeros(len(rows), mx.int32)
    own = [
        kept[row : row + 1] if delta is None else mx.array(delta).reshape(-1)[:1]
        for row, delta in enumerate(rows)
    ]
    flat = all(getattr(delta, "ndim", 1) == 1 for delta in rows)
    return mx.concatenate(own) if flat else mx.concatenate(own)[:, None]


# For each family of mlx-vlm, the factory of its model's call: one call for all rows if the family's
# ``prepare`` supports it.
FACTORIES: dict[str, Factory] = {
    "afm7": call_prepared(afm7.prepare),
    "cohere_compass": call_prepared(cohere_compass.prepare, call_per_row),
    "deepseek_vl_v2": call_prepared(deepseek_vl_v2.prepare),
    "ernie4_5_moe_vl": call_prepared(ernie4_5_moe_vl.prepare, call_per_row),
    "falcon_ocr": call_prepared(falcon_ocr.prepare, call_per_row),
    "falcon_perception": call_per_row,
    "hunyuan_vl": call_prepared(
        hunyuan_vl.prepare, lambda call: call_per_row(hunyuan_vl.forget_computed(call))
    ),
    "limite": call_prepared(limite.prepare),
    "llama4": call_prepared(llama4.prepare),
    "mllama": call_prepared(mllama.prepare),
    "moondream3": call_prepared(moondream3.prepare),
}
# The functions whose fingerprints show the defect, if the model's call is the same without it.
BODIES = {"moondream3": ("LanguageModel.__call__", "Attention.__call__")}

PATCH = Patch(
    id="row-by-row",
    targets=(
        *define(lm_family("afm7", "Model.__call__"), FACTORIES["afm7"]),
        *(
            target
            for family, factory in FACTORIES.items()
            for target in define(
                vlm_family(family, "LanguageModel.__call__"),
                factory,
                fingerprint_of=BODIES.get(family, ()),
            )
        ),
        *wrap(vlm_family("limite", "_causal_window_mask"), limite.build_mask, supports=True),
    ),
    probe="mlx_patches.probes.model_batch:probe_whole",
)
