"""Recurrent layers read a batch's padding as if it were text.

Why
    A recurrent state cannot forget a token. These families feed every position of a padded
    batch through their recurrence, or know of padding in the first piece of a prompt alone, so
    each row but the longest carries its padding in its state from then on.
How
    A piece of a prompt in which some row has padding is fed row by row, each with its own
    tokens and its own caches, which are then put together as a left-padded batch. Rows of equal
    lengths and decode steps are fed as ever. The prefill of unequal rows takes as long as they
    would alone.
Upstream
    mlx-lm 0.32.x masks some of these families; ``BatchGenerator(prefill_batch_size=1)`` does
    the same as this for all of them, where a host can set it.
Retire when
    The families mask their recurrences.
"""

from __future__ import annotations

import copy
import inspect
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from ...core.patch import Factory, Patch, Target
from ..caches import rows as cache_rows

FAMILIES = (
    "baichuan_m1",
    "bailing_moe_linear",
    "falcon_h1",
    "granitemoehybrid",
    "jamba",
    "longcat_flash_ngram",
    "mamba",
    "mamba2",
    "nemotron_h",
    "olmo_hybrid",
    "plamo2",
    "recurrent_gemma",
    "rwkv7",
)
# These mask padding as ``ArraysCache.make_mask`` says, but for the window of their convolution.
MASKED = ("qwen3_5",)
# These know of left padding where they are told the positions of a prompt, and not of right
# padding behind tokens that they were fed before.
KNOW_LEFT = ("qwen3_5", "qwen3_5_moe", "zaya1_vl")


# Right in the releases whose engine pads on the left alone: the mixers tell them apart.
MIXERS = {
    "qwen3_5": "GatedDeltaNet",
    "granitemoehybrid": "GraniteMoeHybridMamba2Mixer",
    "mamba2": "Mamba2Block",
    "nemotron_h": "NemotronHMamba2Mixer",
    "plamo2": "Mamba",
}


def by_row(call: Callable[..., Any], knows_left: bool = False) -> Callable[..., Any]:
    """The model's call, that feeds rows with padding one by one.

    With ``knows_left`` not those with left padding whose positions come with them, where the
    release counts that padding itself. It does not where keys and values are quantized.
    """
    own = inspect.unwrap(call).__globals__
    knows_left &= any(name.endswith("left_padding_info") for name in own)
    signature = inspect.signature(call)
    place = list(signature.parameters).index("cache")

    def replacement(*args: Any, **kwargs: Any) -> Any:
        cache = kwargs.get("cache", args[place] if len(args) > place else None)
        counted = knows_left and kwargs.get("position_ids") is not None
        left_too = not counted or any(map(cache_rows.is_quantized, cache or ()))
        first = next(cache_rows.recurrent(cache or ()), None)
        if first is None or not is_marked(first, left_too):
            return call(*args, **kwargs)
        return fed(call, signature.bind(*args, **kwargs), cache)

    replacement.__wrapped__ = call  # type: ignore[attr-defined]
    replacement.__name__, replacement.__qualname__ = call.__name__, call.__qualname__
    replacement.__module__, replacement.__doc__ = call.__module__, call.__doc__
    return replacement


def is_marked(layer: Any, left_too: bool = True) -> bool:
    """Whether a recurrent cache knows of padding in what comes next."""
    # A cache that was restored without ``__init__`` may lack either.
    left = left_too and getattr(layer, "left_padding", None) is not None
    return left or getattr(layer, "lengths", None) is not None


def fed(call: Callable[..., Any], bound: inspect.BoundArguments, cache: Any) -> Any:
    """Feed a batch of which the caches say that it may have padding."""
    marked = [layer for layer in cache_rows.recurrent(cache) if is_marked(layer)]
    rows, length = shape_of(bound)
    before = marks(marked[0])
    spans = tokens_of(marked[0], rows, length)
    if all(span == (0, length) for span in spans):
        out = call(*bound.args, **bound.kwargs)
    else:
        out = apart(call, bound, cache, spans, before[0] or [0] * rows)
    for layer in marked:
        if marks(layer) == before:  # the model does not count what it fed
            advance(layer, length)
    return out


def apart(
    call: Callable[..., Any],
    bound: inspect.BoundArguments,
    cache: Sequence[Any],
    spans: Sequence[tuple[int, int]],
    left: Sequence[int],
) -> Any:
    """Feed each row by itself; the logits (rows, length, vocabulary) are zero at padding.

    Args:
        call: the model's own.
        bound: its arguments.
        cache: the batch's.
        spans: where each row's tokens are.
        left: how many positions each row's first token is away; a row for which it is positive
            has been fed nothing yet.
    """
    import mlx.core as mx

    model = bound.args[0]
    rows, length = shape_of(bound)
    said: list[Any] = []
    caches: list[list[Any]] = []
    sample: Any = None
    for row, (start, end) in enumerate(spans):
        fresh = model.make_cache()
        alone = [
            cache_rows.as_empty(old, new) if left[row] > 0 else cache_rows.row_of(old, row, new)
            for old, new in zip(cache, fresh, strict=True)
        ]
        caches.append(alone)
        if start == end:
            said.append(None)
            continue
        own = own_arguments(bound.arguments, row, slice(start, end), (rows, length))
        own["cache"] = alone
        one = inspect.BoundArguments(bound.signature, OrderedDict(own))
        sample = call(*one.args, **one.kwargs)
        logits = getattr(sample, "logits", sample)
        said.append(mx.pad(logits, [(0, 0), (start, length - end), (0, 0)]))
    waiting = [max(0, padding - length) for padding in left]
    for index, layer in enumerate(cache):
        cache_rows.put_together(layer, [alone[index] for alone in caches], waiting)
    known = next(one for one in said if one is not None)
    logits = mx.concatenate([mx.zeros_like(known) if one is None else one for one in said])
    if not hasattr(sample, "logits"):
        return logits
    sample = copy.copy(sample)
    sample.logits = logits
    return sample


def own_arguments(
    arguments: Mapping[str, Any], row: int, span: slice, shape: tuple[int, int]
) -> dict[str, Any]:
    """One row's part of a call's arguments, for the tokens of a span."""
    own: dict[str, Any] = {}
    for name, value in arguments.items():
        if type(value) is dict:  # not a module, which is one too
            own[name] = own_arguments(value, row, span, shape)
        elif not hasattr(value, "shape"):
            own[name] = value
        elif name == "position_ids":  # of shape (rows, length) or (3, rows, length)
            own[name] = value[..., row : row + 1, span]
        elif tuple(value.shape[:2]) == shape:
            own[name] = value[row : row + 1, span]
        elif name == "rope_deltas" and value.shape[:1] == shape[:1]:
            own[name] = value[row : row + 1]
        else:
            own[name] = value
    return own


def shape_of(bound: inspect.BoundArguments) -> tuple[int, int]:
    """How many rows a call has, and how many positions."""
    tokens = next(v for v in list(bound.arguments.values())[1:] if hasattr(v, "shape"))
    return int(tokens.shape[0]), int(tokens.shape[1])


def tokens_of(layer: Any, rows: int, length: int) -> list[tuple[int, int]]:
    """Where each row's tokens are among the next ``length`` positions: first, and past the last."""
    left, lengths = marks(layer)
    found = []
    for row in range(rows):
        end = min(length, max(0, lengths[row])) if lengths else length
        start = min(end, max(0, left[row])) if left else 0
        found.append((start, end))
    return found


def marks(layer: Any) -> tuple[list[int] | None, list[int] | None]:
    """A recurrent cache's left padding and lengths, as numbers."""
    # mlx-lm 0.30.4 merges rows to one number, a zero, for all.
    found = (layer.left_padding, getattr(layer, "lengths", None))
    left, lengths = (one.tolist() if one is not None and one.ndim else None for one in found)
    return left, lengths


def advance(layer: Any, count: int) -> None:
    """Note that so many positions were fed; padding that is used up is forgotten."""
    if getattr(layer, "lengths", None) is not None:
        layer.lengths = layer.lengths - count
    if layer.left_padding is not None and layer.left_padding.ndim:
        left = layer.left_padding - count
        layer.left_padding = left if max(left.tolist()) > 0 else None


def _of_lm(family: str) -> Target:
    bodies = ["Model.__call__"]
    if family in MIXERS:
        bodies.append(f"{MIXERS[family]}.__call__")
    return Target("mlx-lm", f"mlx_lm.models.{family}", "Model.__call__", by_row, body=tuple(bodies))


def _of_vlm(family: str, factory: Factory) -> Target:
    return Target("mlx-vlm", f"mlx_vlm.models.{family}.language", "LanguageModel.__call__", factory)


PATCH = Patch(
    id="recurrent-padding",
    summary="recurrent layers read a batch's padding as if it were text",
    targets=(
        *map(_of_lm, (*FAMILIES, *MASKED)),
        # The class that mlx-vlm's plamo2 uses is in plamo2vl.
        *(_of_vlm("plamo2vl" if f == "plamo2" else f, by_row) for f in FAMILIES),
        *(_of_vlm(family, partial(by_row, knows_left=True)) for family in KNOW_LEFT),
    ),
    probe="mlx_patches.probes.recurrent_padding:probe",
    module=__name__,
)
