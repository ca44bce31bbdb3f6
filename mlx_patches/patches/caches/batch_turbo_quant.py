"""A TurboQuant batch cache lacks what engines and hosts ask of every other batch cache.

Why
    ``BatchTurboQuantKVCache`` has no ``prepare`` and ``finalize``, no ``size`` of its own, and
    its rows no ``merge``: right-padded prompts stay where they are, ``size()`` is 0 whatever it
    holds. Its first releases have no ``extract``. ``extend`` with an empty side keeps the rows
    of one side alone, and joins packed values whose codecs sort channels differently.
    ``from_state`` makes a cache without codecs, which dies at its next update, and takes no
    state from a file, where named tuples have become lists.
How
    What is missing is added, with the contract of ``BatchKVCache``. ``extend`` gets two sides
    that hold tokens in the terms of one codec. ``meta_state`` has one entry more: the channels
    that each codec keeps at more bits, from which the release makes the same codec again.
Upstream
    mlx-vlm 0.6.5 adds ``extract``; the rest is live in 0.7.10.
Retire when
    The class has them all.
"""

from __future__ import annotations

import copy
import functools
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

from ...core.patch import Factory, Patch, Target, around
from . import quantized_rows

CLASS = "BatchTurboQuantKVCache"
_CODECS = ("key_codec", "value_codec")
_SETTINGS = ("bits", "seed", "key_bits", "value_bits")
_MARK = "codecs="


def extract(cache: Any, idx: int) -> Any:
    """One row as a ``TurboQuantKVCache``."""
    solo = sys.modules[type(cache).__module__].TurboQuantKVCache(**settings(cache))
    return quantized_rows.extract(cache, idx, _with_codecs(solo, cache))


def merge(cls: Any, caches: Sequence[Any], prefix_lens: Any = None) -> Any:
    """A batch of ``TurboQuantKVCache`` rows. Rows in floats are quantized like the others.

    ``prefix_lens`` as in ``batch_quantized.merge``.

    Raises:
        ValueError: rows of different settings, or none that is quantized.
    """
    if prefix_lens is not None:
        return None
    quantized = [row for row in caches if hasattr(row, "seed")]
    if not quantized or any(settings(row) != settings(quantized[0]) for row in quantized):
        raise ValueError("rows of one batch must be quantized alike")
    kind = settings(quantized[0])
    batch = getattr(sys.modules[cls.__module__], CLASS)
    solo = type(quantized[0])
    rows = [
        row if hasattr(row, "seed") or row.keys is None else solo.from_cache(row, **kind)
        for row in caches
    ]
    first = next((row for row in rows if row.keys is not None), quantized[0])
    return quantized_rows.merge(
        lambda padding: _with_codecs(batch(padding, **kind), first),
        [recoded(row, first) for row in rows],
    )


def extend(original: Callable[[Any, Any], None], cache: Any, other: Any) -> None:
    """The release's ``extend`` over sides in the terms of one codec, of which none is empty."""
    if cache.keys is None and other.keys is not None:
        _with_codecs(cache, other)
    return quantized_rows.extend(original, cache, recoded(other, cache))


def recoded(cache: Any, other: Any) -> Any:
    """The cache with its tokens in the terms of the other's codecs; itself where it has."""
    if cache.keys is None or other.keys is None:
        return cache
    if all(channels(getattr(cache, c)) == channels(getattr(other, c)) for c in _CODECS):
        return cache
    view = copy.copy(cache)
    view.keys = other.key_codec.quantize(cache.key_codec.dequantize(cache.keys))
    view.values = other.value_codec.quantize(cache.value_codec.dequantize(cache.values))
    return _with_codecs(view, other)


def settings(cache: Any) -> dict[str, Any]:
    """The arguments that make another cache of the same kind."""
    return {name: getattr(cache, name) for name in _SETTINGS if hasattr(cache, name)}


def channels(codec: Any) -> tuple[int, list[int]]:
    """How wide a codec's heads are, and the channels that it keeps at more bits."""
    high = getattr(codec, "high_idx", None)
    return int(codec.dim), [] if high is None else high.tolist()


def restored_codecs(cache: Any, text: str) -> None:
    """Give a cache the codecs that the release makes of heads that stand out where these did."""
    import mlx.core as mx

    heads = []
    for width, high in json.loads(text):
        loud = mx.ones((width,))
        loud[mx.array(high, mx.int32)] = 2.0
        heads.append(loud.reshape(1, 1, 1, width))
    solo = sys.modules[type(cache).__module__].TurboQuantKVCache(**settings(cache))
    solo._ensure_codecs(*heads)
    _with_codecs(cache, solo)


def named(cache: Any, tree: Any) -> Any:
    """Keys or values as the named tuples that they were before they were in a file."""
    module = sys.modules[type(cache).__module__]
    if type(tree) not in (list, tuple):
        return tree
    if hasattr(tree[0], "dtype"):
        return module.TurboQuantMSEState(*tree)
    return module.TurboQuantSplitState(*(named(cache, part) for part in tree))


def _with_codecs(cache: Any, other: Any) -> Any:
    for name in _CODECS:
        setattr(cache, name, getattr(other, name, None))
    return cache


def _state(original: Any) -> property:
    @functools.wraps(original.fget)
    def get(cache: Any) -> Any:
        return original.fget(cache)

    @functools.wraps(original.fset)
    def put(cache: Any, state: Any) -> None:
        keys, values, *rest = state
        original.fset(cache, (named(cache, keys), named(cache, values), *rest))

    return property(get, put)


def _meta_state(original: Any) -> property:
    @functools.wraps(original.fget)
    def get(cache: Any) -> Any:
        codecs = [getattr(cache, name, None) for name in _CODECS]
        texts = () if None in codecs else (_MARK + json.dumps([*map(channels, codecs)]),)
        return (*original.fget(cache), *texts)

    @functools.wraps(original.fset)
    def put(cache: Any, meta: Any) -> None:
        texts = [text for text in meta if str(text).startswith(_MARK)]
        original.fset(cache, [entry for entry in meta if entry not in texts])
        _with_codecs(cache, None)
        for text in texts:
            restored_codecs(cache, text.removeprefix(_MARK))

    return property(get, put)


def _added(name: str, factory: Factory) -> Target:
    return _target(name, factory, [name, "update_and_fetch"], adds=True)


def _target(name: str, factory: Factory, bodies: Sequence[str], adds: bool = False) -> Target:
    return Target(
        "mlx-vlm",
        "mlx_vlm.turboquant",
        f"{CLASS}.{name}",
        factory,
        body=tuple(f"{CLASS}.{body}" for body in bodies),
        adds=adds,
    )


PATCH = Patch(
    id="batch-turbo-quant",
    summary="a TurboQuant batch cannot take in right-padded prompts, merge, or be restored",
    targets=(
        _added("prepare", lambda original: quantized_rows.prepare),
        _added("finalize", lambda original: quantized_rows.finalize),
        _added("extract", lambda original: extract),
        Target(
            "mlx-vlm",
            "mlx_vlm.turboquant",
            "TurboQuantKVCache.merge",
            lambda original: classmethod(merge),
            body=("TurboQuantKVCache.merge", f"{CLASS}.update_and_fetch"),
            adds=True,
        ),
        _added("size", lambda original: quantized_rows.size),
        _target("extend", around(extend), ["extend"]),
        _target("state", _state, ["state", "meta_state"]),
        _target("meta_state", _meta_state, ["state", "meta_state"]),
    ),
    probe="mlx_patches.probes.batch_quantized:probe",
    module=__name__,
)
