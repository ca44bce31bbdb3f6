"""Recurrent models (Mamba, Jamba, RWKV and others) read a batch's padding as text: wrong output.

Why: A recurrent state cannot forget a token. These families run every position of a padded batch
    through their recurrence, or mask padding only in a prompt's first chunk, so the state of every
    row but the longest includes its padding. A row that joins a batch before its first token gets
    states of zeros, which RecurrentGemma takes for those of earlier text: it scales down the first
    token's input unless there is no state.
How: The batch is fed once, and its recurrent layers get the rows' token positions, so that states
    change only there. Mamba-2 layers set their time steps to zero at padding; other layers run in
    stretches in which no row begins or ends. After a call of a single position, rows without a
    token there get their previous states back. Rows are fed one by one if the model splits the
    batch itself, and for Mamba-2 if a chunk has padding on both sides: each row is fed with its own
    tokens and caches, which are then merged into a left-padded batch, and all outputs are joined.
    Rows of equal lengths and decode steps are fed as before. RecurrentGemma's recurrent blocks run
    a second time, without states, for rows whose states are all zeros; after a call in which each
    row had a token, this check is skipped until rows join or leave.

    Caches announce padding by ``left_padding`` and ``lengths``. A chunk without padding is fed as
    before, without announcing any; later padding stays announced. Padding that was fed is no
    longer announced, so decode steps need no device read. A chunk whose caches announce padding
    reads the device once, or twice if it is fed row by row.
Upstream: mlx-lm 0.32.x masks some of these families. ``BatchGenerator(prefill_batch_size=1)`` feeds
    rows one by one for all of them, if the host can set it.
Retire when: The families mask their recurrences.
"""

import functools
import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from ....core.verbs import Factory, Function, Patch, Target, around, mx
from ..._shared import rows as cache_rows
from ..._shared.row_calls import Span, bind_call, find_argument, find_shape
from .batch import (
    announce_padding,
    attend_with_window,
    call_from_start,
    call_in_stretches,
    call_with_keys_in_stretches,
    close_step,
    hold_rows,
    is_announced,
    may_start_rows,
    scan_in_stretches,
)
from .by_row import forward_per_row

# How a family's batch is fed if rows have padding.
MASKED_STEPS, STRETCHES, BY_ROW, ITSELF = "masked steps", "stretches", "by row", "itself"
# The attributes with which a recurrent cache announces padding.
MARKS = ("left_padding", "lengths")

# Families of Mamba-2 layers, which mask padding everywhere but in their states.
MAMBA2 = ("falcon_h1", "granitemoehybrid", "mamba2", "nemotron_h", "plamo2")
# For each family of other recurrences, the call that is patched, and how.
LAYERS: dict[str, tuple[str, Factory]] = {
    "baichuan_m1": ("Attention.__call__", around(attend_with_window)),
    "bailing_moe_linear": ("recurrent_gla", around(scan_in_stretches)),
    "jamba": ("JambaMambaMixer.__call__", call_in_stretches),
    "longcat_flash_ngram": ("NgramEmbedding.__call__", call_in_stretches),
    "mamba": ("MambaBlock.__call__", call_in_stretches),
    "olmo_hybrid": ("GatedDeltaNet.__call__", call_in_stretches),
    "recurrent_gemma": ("RecurrentBlock.__call__", call_from_start),
    "rwkv7": ("Rwkv7Layer.__call__", call_in_stretches),
}
# Layers whose call is also patched for batches without padding.
WHEN = {"recurrent_gemma": may_start_rows}
FAMILIES = tuple(sorted((*MAMBA2, *LAYERS)))
# Families only in mlx-vlm with their own call around the Mamba-2 layers of another family.
WHOLE = ("nemotron_h_nano_omni",)
# Families that mask padding by ``ArraysCache.make_mask``, but not in their convolution's window.
MASKED: dict[str, tuple[str, Factory]] = {
    "kimi_linear": ("KimiDeltaAttention.__call__", call_in_stretches),
    "qwen3_5": ("GatedDeltaNet.__call__", call_in_stretches),
}
# Families that mask left padding if the call has position ids, except in a chunk of a single
# position, but not right padding that follows tokens of an earlier call.
MASK_LEFT: dict[str, tuple[str, Factory] | None] = {
    "qwen3_5": ("Qwen3_5GatedDeltaNet.__call__", call_in_stretches),
    "qwen3_5_moe": None,  # uses the layers of qwen3_5
    "zaya1_vl": ("CCA.__call__", call_with_keys_in_stretches),
}


# Families that are right in releases whose engine pads only on the left: the fingerprint of the
# mixer distinguishes these releases.
MIXERS = {
    "kimi_linear": "KimiDeltaAttention",
    "qwen3_5": "GatedDeltaNet",
    "granitemoehybrid": "GraniteMoeHybridMamba2Mixer",
    "mamba2": "Mamba2Block",
    "nemotron_h": "NemotronHMamba2Mixer",
    "plamo2": "Mamba",
}


def call_with_padding(call: Function, how: str = BY_ROW, masks_left: bool = False) -> Function:
    """Factory of the model's call, repaired for batches with padding.

    Args:
        how: ``MASKED_STEPS``, ``STRETCHES`` or ``BY_ROW``.
        masks_left: whether some releases of the family handle left padding themselves, if the
            call has position ids and no cache is quantized: they feed left-padded rows one by
            one, except in a chunk of a single position.
    """
    own = inspect.unwrap(call).__globals__
    masks_left &= any(name.endswith("left_padding_info") for name in own)
    how = BY_ROW if masks_left else how
    signature = inspect.signature(call)
    names = list(signature.parameters)
    place = names.index("cache") if "cache" in names else len(names)

    @functools.wraps(call)
    def call_model(*args: Any, **kwargs: Any) -> Any:
        # Not by binding all arguments, since every step runs this.
        cache = kwargs.get("cache", args[place] if len(args) > place else None) or ()
        first = next(cache_rows.recurrent(cache), None)
        if first is None or not has_marks(first):
            return call(*args, **kwargs)
        bound = bind_call(signature, args, kwargs)
        if bound is None:
            return call(*args, **kwargs)
        counted = masks_left and find_argument(bound, "position_ids") is not None
        left_too = not counted or any(map(cache_rows.is_quantized, cache))
        own = how if has_marks(first, left_too) else ITSELF
        return feed_marked(call, bound, cache, own)

    return call_model


def has_marks(layer: Any, left_too: bool = True) -> bool:
    """Whether a recurrent cache announces padding in the next positions, without a device read."""
    # A cache that was restored without ``__init__`` may lack either attribute. ``merge`` of
    # mlx-lm 0.30.4 sets the number zero, not an array.
    names = MARKS if left_too else MARKS[1:]
    return any(cache_rows.is_counts(getattr(layer, name, None)) for name in names)


def feed_marked(call: Function, bound: inspect.BoundArguments, cache: Any, how: str) -> Any:
    """Feed a batch whose caches announce padding, and update the announced padding."""
    if is_announced():  # the call of a family whose model calls this one
        return call(*bound.args, **bound.kwargs)
    marked = [layer for layer in cache_rows.recurrent(cache) if has_marks(layer)]
    shape = find_shape(bound)
    # Engines and hosts set the same padding on all caches, so it is read from one.
    left, lengths = cache_rows.read_counts([getattr(marked[0], name, None) for name in MARKS])
    rows = len(left or lengths or ())
    if shape is None or shape[0] != rows:  # the call and the caches differ in their number of rows
        return call(*bound.args, **bound.kwargs)
    length = shape[1]
    padding = left or [0] * rows
    spans = find_spans(padding, lengths or [length] * rows, length)
    starts, stops = (set(side) for side in zip(*spans, strict=True))
    maskable = starts == {0} or stops == {length}
    fed = [start < stop for start, stop in spans]
    full = all(span == (0, length) for span in spans)
    if full or (how == ITSELF and length > 1):
        own = list(cache)
        # Mamba-2 layers raise at counts beyond a chunk that itself has no padding.
        with replace_marks(cache, None, length) if full else nullcontext():
            out = call(*bound.args, **bound.kwargs)
        restore_caches(cache, own)
    # Mamba-2 layers feed a single position to a separate kernel without a mask.
    elif not any(fed) or (length == 1 and how == MASKED_STEPS):
        with replace_marks(cache, None, length):
            out = call_and_hold_states(call, bound, cache, fed)
    elif how == STRETCHES or (how == MASKED_STEPS and maskable):
        counts = spans if how == MASKED_STEPS else None
        with replace_marks(cache, counts, length), announce_padding(spans, length):
            out = call(*bound.args, **bound.kwargs)
    else:
        out = forward_per_row(call, bound, spans, padding)
    for layer in marked:
        set_marks(layer, left, lengths, length)
    return out


def restore_caches(cache: Any, own: Sequence[Any]) -> None:
    """Restore a batch's own caches if the model has replaced them with merged rows.

    Only they have the padding that comes later.
    """
    for layer, merged in zip(*map(cache_rows.flatten_caches, (own, cache)), strict=True):
        if merged is not layer:
            recurrent = cache_rows.is_recurrent(merged)
            cache_rows.write_rows(layer, merged.cache if recurrent else merged)
    if any(merged is not layer for merged, layer in zip(cache, own, strict=True)):
        cache[:] = own


@contextmanager
def replace_marks(cache: Any, spans: Sequence[Span] | None, length: int) -> Iterator[None]:
    """In this context, recurrent caches announce the padding of ``spans``; without spans, none.

    A side without padding is None: if both are arrays, releases that mask only one side mask the
    left one, even if it is all zeros.
    """
    layers = list(cache_rows.recurrent(cache))
    before = [tuple(getattr(layer, name, None) for name in MARKS) for layer in layers]
    left, lengths = zip(*spans, strict=True) if spans else ((), ())
    for layer in layers:
        # A separate array for each cache: caches update theirs in place.
        layer.left_padding = mx.array(left) if any(left) else None
        layer.lengths = mx.array(lengths) if any(end < length for end in lengths) else None
    try:
        yield
    finally:
        for layer, marks in zip(layers, before, strict=True):
            layer.left_padding, layer.lengths = marks


def find_spans(left: Sequence[int], lengths: Sequence[int], length: int) -> list[Span]:
    """Each row's tokens among the next positions, as (first, one past the last)."""
    found = []
    for padding, end in zip(left, lengths, strict=True):
        stop = min(length, max(0, end))
        found.append((min(stop, max(0, padding)), stop))
    return found


def call_and_hold_states(
    call: Function, bound: inspect.BoundArguments, cache: Any, fed: Sequence[bool]
) -> Any:
    """Call the model; rows that are not ``fed`` keep their recurrent states.

    If the call raises, all rows keep their states.
    """
    own = list(cache)
    before = [(layer, list(layer.cache)) for layer in cache_rows.recurrent(cache)]
    held: Sequence[bool] = ()  # stays empty if the call raises
    try:
        out = call(*bound.args, **bound.kwargs)
        restore_caches(cache, own)
        held = fed
    finally:
        for layer, states in before:
            if any(held):
                states = [hold_rows(held, *pair) for pair in zip(layer.cache, states, strict=True)]
            # Another list, since rows may have had no token yet (``is_fed``).
            layer.cache = states
    return out


def set_marks(
    layer: Any, left: Sequence[int] | None, lengths: Sequence[int] | None, count: int
) -> None:
    """Set the padding that a recurrent cache announces after a call; None if none is left.

    It is computed from the numbers before the call, so the cache's own, which the model may have
    updated, are not read from the device.
    """
    # A separate array for each cache: caches update theirs in place. An attribute that the model
    # set to None stays None.
    if lengths is not None and getattr(layer, "lengths", None) is not None:
        layer.lengths = mx.array([end - count for end in lengths])
    if left is not None and getattr(layer, "left_padding", None) is not None:
        waiting = [padding - count for padding in left]
        layer.left_padding = mx.array(waiting) if max(waiting) > 0 else None


def _of_lm(family: str) -> Iterator[Target]:
    module = f"mlx_lm.models.{family}"
    bodies = ["Model.__call__"]
    if family in MIXERS:
        bodies.append(f"{MIXERS[family]}.__call__")
    how = MASKED_STEPS if family in MAMBA2 else STRETCHES
    factory = functools.partial(call_with_padding, how=how)
    yield Target("mlx-lm", module, "Model.__call__", factory, fingerprint_of=tuple(bodies))
    if family not in MAMBA2:
        layer = {**LAYERS, **MASKED}[family]
        yield Target("mlx-lm", module, *layer, supports=True, when=WHEN.get(family, is_announced))


def _of_vlm(family: str) -> Iterator[Target]:
    # The class that mlx-vlm's plamo2 uses is in plamo2vl.
    module = f"mlx_vlm.models.{'plamo2vl' if family == 'plamo2' else family}.language"
    how = MASKED_STEPS if family in (*MAMBA2, *WHOLE) else STRETCHES
    factory = functools.partial(call_with_padding, how=how, masks_left=family in MASK_LEFT)
    yield Target("mlx-vlm", module, "LanguageModel.__call__", factory)
    layer = {**LAYERS, **MASK_LEFT}.get(family)
    if layer is not None:
        yield Target("mlx-vlm", module, *layer, supports=True, when=WHEN.get(family, is_announced))


def _scan(distribution: str) -> Target:
    """The scan that ``ssm_update`` calls in all Mamba-2 layers."""
    module = f"{distribution.replace('-', '_')}.models.ssm"
    return Target(distribution, module, "ssm_attn", close_step, supports=True, when=is_announced)


PATCH = Patch(
    id="recurrent-padding",
    targets=(
        *(target for family in (*FAMILIES, *MASKED) for target in _of_lm(family)),
        *(target for family in (*FAMILIES, *MASK_LEFT, *WHOLE) for target in _of_vlm(family)),
        *map(_scan, ("mlx-lm", "mlx-vlm")),
    ),
)
