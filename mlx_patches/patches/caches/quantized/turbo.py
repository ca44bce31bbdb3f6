"""TurboQuant caches, whose codecs store the channels of largest magnitude with more bits.

Only a codec with the same channels can read packed values. Rows with different codecs are therefore
repacked before they join one batch, and a saved cache records which channels its codecs store with
more bits.
"""

import copy
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

from ....core.verbs import Patch, add, mx, wrap
from ..._shared import quantized as contract
from ..._shared.rows import make_solo
from ..._shared.targets import around_setter, at

CLASS = "BatchTurboQuantKVCache"
_CODECS = ("key_codec", "value_codec")
_MARK = "codecs="


def merge(cls: Any, caches: Sequence[Any], prefix_lens: Any = None) -> Any | None:
    """Merge ``TurboQuantKVCache`` rows into a batch; float rows are quantized like the others.

    mlx-vlm's prefix cache passes ``prefix_lens`` only after its own attempts to merge the rows
    returned None; this returns None as well. Raises ValueError: the rows' settings differ, or no
    row is quantized.
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
    return contract.extract(cache, idx, copy_codecs(make_solo(cache), cache))


def extend(original: Callable[[Any, Any], None], cache: Any, other: Any) -> None:
    """Run the release's ``extend`` on two written caches with the same codecs."""
    if cache.keys is None and other.keys is not None:
        copy_codecs(cache, other)
    return contract.extend(original, cache, use_codecs(other, cache))


def copy_codecs(cache: Any, other: Any) -> Any:
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
    """Whether the codecs of two written caches store the same channels with more bits."""
    pairs = [(getattr(cache, name), getattr(other, name)) for name in _CODECS]
    return all(one is two or read_channels(one) == read_channels(two) for one, two in pairs)


def read_channels(codec: Any) -> tuple[int, list[int]]:
    """The width of a codec's heads, and the channels that it stores with more bits."""
    high = getattr(codec, "high_idx", None)
    return int(codec.dim), [] if high is None else high.tolist()


def restore_codecs(cache: Any, text: str) -> None:
    """Rebuild a cache's codecs from the channels recorded in ``meta_state``.

    The release selects the channels of largest magnitude, so its codecs are built from heads in
    which the recorded channels are the largest.
    """
    heads = []
    for width, high in json.loads(text):
        gains = mx.ones((width,))
        gains[mx.array(high, mx.int32)] = 2.0
        heads.append(gains.reshape(1, 1, 1, width))
    solo = make_solo(cache)
    solo._ensure_codecs(*heads)
    copy_codecs(cache, solo)


def make_states(cache: Any, tree: Any) -> Any:
    """Keys or values as the release's named tuples; files store them as lists."""
    module = sys.modules[type(cache).__module__]
    if type(tree) not in (list, tuple):
        return tree
    if hasattr(tree[0], "dtype"):
        return module.TurboQuantMSEState(*tree)
    return module.TurboQuantSplitState(*(make_states(cache, part) for part in tree))


def put_state(put: Callable[..., None], cache: Any, state: Any) -> None:
    """Set the state, whose keys and values may be named tuples or lists."""
    keys, values, *rest = state
    put(cache, (make_states(cache, keys), make_states(cache, values), *rest))


def save_codecs(get: Callable[..., Any], cache: Any) -> tuple[Any, ...]:
    """The ``meta_state``, with one more entry if the cache has codecs."""
    codecs = [getattr(cache, name, None) for name in _CODECS]
    texts = () if None in codecs else (_MARK + json.dumps([*map(read_channels, codecs)]),)
    return (*get(cache), *texts)


def put_meta_state(put: Callable[..., None], cache: Any, meta: Any) -> None:
    """Set the ``meta_state``, and rebuild the codecs from its last entry."""
    texts = [text for text in meta if str(text).startswith(_MARK)]
    put(cache, [entry for entry in meta if entry not in texts])
    copy_codecs(cache, None)
    for text in texts:
        restore_codecs(cache, text.removeprefix(_MARK))


_MODULE = "mlx_vlm.turboquant"
_BATCH = f"{_MODULE}:{CLASS}"

BATCH_TURBO_QUANT = Patch(
    id="batch-turbo-quant",
    severity="crash",
    targets=(
        *contract.make_targets(
            _BATCH, {"prepare": contract.prepare, "finalize": contract.finalize, "extract": extract}
        ),
        *add(
            f"{_MODULE}:TurboQuantKVCache.merge",
            classmethod(merge),
            "TurboQuantKVCache.merge",
            f"{CLASS}.update_and_fetch",
        ),
        *contract.make_targets(_BATCH, {"size": contract.size}),
        *wrap(f"{_BATCH}.extend", extend, fingerprint_of=(f"{CLASS}.extend",)),
        *at(
            (_MODULE,),
            {
                f"{CLASS}.state": around_setter(put_state),
                f"{CLASS}.meta_state": around_setter(put_meta_state, save_codecs),
            },
            fingerprint_of=(f"{CLASS}.state", f"{CLASS}.meta_state"),
        ),
    ),
    doc="""mlx-vlm with TurboQuant: a batch crashes when prompts are padded, merged or restored.

    Why: ``BatchTurboQuantKVCache`` does not implement ``prepare``, ``finalize`` and ``size``, and
        the solo class has no ``merge``: right padding is not moved, rows cannot be merged, and
        ``size()`` is always 0. Its first releases have no ``extract``. ``extend`` drops one batch's
        rows if the other is empty, and joins values that were packed by different codecs.
        ``from_state`` makes a cache without codecs, whose next update raises, and rejects a state
        from a file, where named tuples have become lists.
    How: The missing methods are added, with the contract of ``BatchKVCache``. Before ``extend``
        joins two batches, an empty one gets keys and values of zero tokens, and the second one's
        tokens are repacked with the first one's codecs. ``meta_state`` gets one more entry: the
        channels that each codec stores with more bits, from which the release rebuilds it.
    Upstream: mlx-vlm 0.6.5 adds ``extract``; the rest is not fixed in 0.7.10.
    Retire when: The class has all of these methods in every supported release.
    """,
)
