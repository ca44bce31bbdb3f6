"""A quantized batch cache lacks what engines and hosts ask of every other batch cache.

Why
    ``BatchQuantizedKVCache`` has no ``prepare``, ``finalize`` and ``extract`` in its first
    releases, and no ``size`` and ``nbytes`` of its own in any: right-padded prompts stay where
    they are, a row cannot leave, ``size()`` is 0 whatever it holds. One made by ``from_state``
    forgets that it has no right padding and dies in ``finalize``. ``extend`` keeps the rows of
    one side alone when the other is empty, and fails on unequal buffers.
How
    What is missing is added, with the contract of ``BatchKVCache``; ``finalize`` moves rows
    inside the buffer and leaves its end alone. ``extend`` gets sides of which neither is empty.
    ``merge`` belongs to the rows (see ``quantized_merge``): where a batch class has it, Qwen3.5
    runs padded rows one by one and merges them without saying how they were quantized.
Upstream
    mlx-vlm 0.6.0 repairs ``extend``, 0.6.5 adds ``prepare``, ``finalize`` and ``extract``.
    Forks that add ``finalize`` cut ``_idx`` to the longest row (seen in omlx).
Retire when
    The class has them all.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from ...core.patch import Attribute, Factory, Patch, Target, around
from . import quantized_rows

CLASS = "BatchQuantizedKVCache"


def extract(cache: Any, idx: int) -> Any:
    """One row as a ``QuantizedKVCache``."""
    solo = sys.modules[type(cache).__module__].QuantizedKVCache(
        group_size=cache.group_size, bits=cache.bits
    )
    return quantized_rows.extract(cache, idx, solo)


def merge(cls: Any, caches: Sequence[Any], prefix_lens: Any = None) -> Any:
    """A batch of ``QuantizedKVCache`` rows. Rows in floats are quantized like the others.

    mlx-vlm's prefix cache passes ``prefix_lens``, after the rows have said themselves that they
    do not go together; it is told so again, with None.

    Raises:
        ValueError: rows of different bits or groups, or none that is quantized.
    """
    if prefix_lens is not None:
        return None
    kinds = {(row.group_size, row.bits) for row in caches if hasattr(row, "bits")}
    if len(kinds) != 1:
        raise ValueError(f"rows of one batch must be quantized alike, not as {sorted(kinds)}")
    group_size, bits = kinds.pop()
    rows = [
        row if hasattr(row, "bits") or row.keys is None else row.to_quantized(group_size, bits)
        for row in caches
    ]
    return quantized_rows.merge(lambda padding: cls(padding, group_size, bits), rows)


def _added(name: str, factory: Factory) -> Target:
    return _target(name, factory, [name, "update_and_fetch"], adds=True)


def _target(name: str, factory: Factory, bodies: Sequence[str], adds: bool = False) -> Target:
    return Target(
        "mlx-vlm",
        "mlx_vlm.models.cache",
        f"{CLASS}.{name}",
        factory,
        body=tuple(f"{CLASS}.{body}" for body in bodies),
        adds=adds,
    )


PATCH = Patch(
    id="batch-quantized",
    summary="a quantized batch cannot take in right-padded prompts or give back a row",
    targets=(
        _added("prepare", lambda original: quantized_rows.prepare),
        _added("finalize", lambda original: quantized_rows.finalize),
        _added("extract", lambda original: extract),
        _added("size", lambda original: quantized_rows.size),
        _added("nbytes", lambda original: property(quantized_rows.nbytes)),
        _target("extend", around(quantized_rows.extend), ["extend"]),
        _target(
            "_right_padding",
            lambda original: Attribute("_right_padding", quantized_rows.right_padding),
            ["__init__", "state", "meta_state", "finalize"],
            adds=True,
        ),
    ),
    probe="mlx_patches.probes.batch_quantized:probe",
    module=__name__,
)
