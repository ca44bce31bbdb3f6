"""TurboQuant caches, whose codecs keep the channels of largest magnitude at more bits.

Packed values can be read only by a codec with the same channels. Rows of different codecs are
therefore repacked before they join one batch, and a saved cache records which channels its codecs
keep at more bits.
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

from ....core.patch import Patch, Target, around
from ..._shared import quantized as contract
from ..._shared.rows import make_solo
from ..._shared.targets import around_setter, at

CLASS = "BatchTurboQuantKVCache"
_CODECS = ("key_codec", "value_codec")
_MARK = "codecs="


def merge(cls: Any, caches: Sequence[Any], prefix_lens: Any = None) -> Any | None:
    """Merge ``TurboQuantKVCache`` rows into a batch; float rows are quantized like the others.

    mlx-vlm's prefix cache passes ``prefix_lens`` only after its own attempts to merge the rows
    returned None; this returns None as well.

    Raises:
        ValueError: the rows' settings differ, or no row is quantized.
    """
    if prefix_lens is not None:
        return None
    settings, rows = contract.quantize_alike(
        caches, lambda row, settings: cls.from_cache(row, **settings)
    )
    first = next((row for row in rows if row.keys is not None), None)
    batch = getattr(sys.modules[cls.__module__], CLASS)
    return contract.merge(
        lambda padding: copy_codecs(batch(padding, **settings), first),
        [use_codecs(row, first) for row in rows],
    )


def extract(cache: Any, idx: int) -> Any:
    """Extract one row as a ``TurboQuantKVCache``."""
    return contract.extract(cache, idx, copy_codecs(make_solo(cache), cache))


def extend(original: Callable[[Any, Any], None], cache: Any, other: Any) -> None:
    """Run the release's ``extend`` on two written caches with the same codecs."""
    if cache.keys is None and other.keys is not None:
        copy_codecs(cache, other)
    return contract.extend(original, cache, use_codecs(other, cache))


# -- codecs ----------------------------------------------------------------------------------


def copy_codecs(cache: Any, other: Any) -> Any:
    """Set a cache's codecs to the other's, None where it has none, and return the cache."""
    for name in _CODECS:
        setattr(cache, name, getattr(other, name, None))
    return cache


def use_codecs(cache: Any, other: Any) -> Any:
    """A copy of a cache repacked with the other's codecs; the cache itself if nothing differs."""
    if cache.keys is None or other is None or other.keys is None or have_same_codecs(cache, other):
        return cache
    view = copy.copy(cache)
    view.keys = other.key_codec.quantize(cache.key_codec.dequantize(cache.keys))
    view.values = other.value_codec.quantize(cache.value_codec.dequantize(cache.values))
    return copy_codecs(view, other)


def have_same_codecs(cache: Any, other: Any) -> bool:
    """Whether the codecs of two written caches keep the same channels at more bits."""
    pairs = [(getattr(cache, name), getattr(other, name)) for name in _CODECS]
    return all(one is two or read_channels(one) == read_channels(two) for one, two in pairs)


def read_channels(codec: Any) -> tuple[int, list[int]]:
    """The width of a codec's heads, and the channels that it keeps at more bits."""
    high = getattr(codec, "high_idx", None)
    return int(codec.dim), [] if high is None else high.tolist()


def restore_codecs(cache: Any, text: str) -> None:
    """Rebuild a cache's codecs from the channels recorded in ``meta_state``.

    The release chooses the channels of largest magnitude, so its codecs are built from heads in
    which the recorded channels are the largest.
    """
    import mlx.core as mx

    heads = []
    for width, high in json.loads(text):
        gains = mx.ones((width,))
        gains[mx.array(high, mx.int32)] = 2.0
        heads.append(gains.reshape(1, 1, 1, width))
    solo = make_solo(cache)
    solo._ensure_codecs(*heads)
    copy_codecs(cache, solo)


# -- state -----------------------------------------------------------------------------------


def name_states(cache: Any, tree: Any) -> Any:
    """Keys or values as the release's named tuples, which files store as lists."""
    module = sys.modules[type(cache).__module__]
    if type(tree) not in (list, tuple):
        return tree
    if hasattr(tree[0], "dtype"):
        return module.TurboQuantMSEState(*tree)
    return module.TurboQuantSplitState(*(name_states(cache, part) for part in tree))


def put_state(put: Callable[..., None], cache: Any, state: Any) -> None:
    """Set the state, whose keys and values are named tuples or lists."""
    keys, values, *rest = state
    put(cache, (name_states(cache, keys), name_states(cache, values), *rest))


def save_codecs(get: Callable[..., Any], cache: Any) -> tuple[Any, ...]:
    """``meta_state`` with one more entry if the cache has codecs."""
    codecs = [getattr(cache, name, None) for name in _CODECS]
    texts = () if None in codecs else (_MARK + json.dumps([*map(read_channels, codecs)]),)
    return (*get(cache), *texts)


def put_meta_state(put: Callable[..., None], cache: Any, meta: Any) -> None:
    """Set the ``meta_state``, and rebuild the codecs that it has."""
    texts = [text for text in meta if str(text).startswith(_MARK)]
    put(cache, [entry for entry in meta if entry not in texts])
    copy_codecs(cache, None)
    for text in texts:
        restore_codecs(cache, text.removeprefix(_MARK))


_PLACE = ("mlx-vlm", "mlx_vlm.turboquant")

BATCH_TURBO_QUANT = Patch(
    id="batch-turbo-quant",
    severity="crash",
    every_model=True,
    summary="mlx-vlm with TurboQuant: a batch crashes when prompts are padded, merged or restored",
    targets=(
        *contract.added(
            _PLACE,
            CLASS,
            {
                "prepare": lambda original: contract.prepare,
                "finalize": lambda original: contract.finalize,
                "extract": lambda original: extract,
            },
        ),
        Target(
            *_PLACE,
            "TurboQuantKVCache.merge",
            lambda original: classmethod(merge),
            fingerprint_of=("TurboQuantKVCache.merge", f"{CLASS}.update_and_fetch"),
            defines_new_attribute=True,
        ),
        *contract.added(_PLACE, CLASS, {"size": lambda original: contract.size}),
        Target(*_PLACE, f"{CLASS}.extend", around(extend), (f"{CLASS}.extend",)),
        *at(
            (_PLACE,),
            {
                f"{CLASS}.state": around_setter(put_state),
                f"{CLASS}.meta_state": around_setter(put_meta_state, save_codecs),
            },
            fingerprint_of=(f"{CLASS}.state", f"{CLASS}.meta_state"),
        ),
    ),
    doc="""A TurboQuant batch cache lacks methods that engines and hosts call on every batch cache.

    Why
        ``BatchTurboQuantKVCache`` has no ``prepare`` and ``finalize`` and no ``size`` of its
        own, and the solo class has no ``merge``: right-padded prompts stay where they are, rows
        cannot be merged, and ``size()`` is always 0. Its first releases have no ``extract``.
        ``extend`` keeps only one batch's rows where the other is empty, and joins values that
        were packed by different codecs. ``from_state`` makes a cache without codecs, whose next
        update raises, and rejects a state from a file, where named tuples have become lists.
    How
        The missing methods are added, with the contract of ``BatchKVCache``. Before ``extend``
        joins two batches, an empty one gets keys and values of no tokens, and the other's tokens
        are repacked with the first one's codecs. ``meta_state`` gets one more entry: the channels
        that each codec keeps at more bits, from which the release rebuilds the same codec.
    Upstream
        mlx-vlm 0.6.5 adds ``extract``; the rest is not fixed in 0.7.10.
    Retire when
        The class has all of these methods in every supported release.
    """,
)
