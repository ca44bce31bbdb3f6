"""A rotating cache's ``max_size`` is not always an ``int``.

Why
    Hosts merge and restore rotating caches themselves, and some leave an array, a numpy
    scalar or text in ``max_size``. Slices, comparisons and ``min`` over it then fail, or
    return arrays where the release expects numbers.
How
    The attribute converts what is written to the one ``int`` that it means. What cannot be
    one number stays as it is.
Upstream
    No release converts; each puts an ``int`` there itself, up to mlx-lm 0.32.2 and mlx-vlm
    0.7.10. Reported in vllm-mlx #256.
Retire when
    The classes convert or check ``max_size`` themselves.
"""

from __future__ import annotations

from typing import Any

from ...core.patch import Attribute, Patch, Target, stored


def as_int(value: Any) -> Any:
    """The ``int`` that a value means; the value itself where it means none."""
    if type(value) is int:
        return value
    meant = value
    if hasattr(value, "tolist") and hasattr(value, "reshape"):
        elements = value.reshape(-1).tolist()
        meant = elements[0] if elements and elements.count(elements[0]) == len(elements) else None
    if isinstance(meant, bool):
        return value
    if isinstance(meant, str):
        return int(meant) if meant.isdecimal() else value
    if isinstance(meant, float):
        return int(meant) if meant.is_integer() else value
    return int(meant) if isinstance(meant, int) else value


def _max_size(original: Any) -> Attribute:
    def read(cache: Any) -> Any:
        value = cache.__dict__.get("max_size")
        if type(value) is int:
            return value
        return as_int(stored(cache, "max_size"))  # what was there before the patch

    return Attribute("max_size", read, as_int)


def _targets() -> tuple[Target, ...]:
    bodies = {
        "RotatingKVCache": ("__init__", "_update_in_place", "size"),
        "BatchRotatingKVCache": ("__init__", "_update_in_place", "size"),
    }
    return tuple(
        Target(
            distribution,
            module,
            f"{name}.max_size",
            _max_size,
            body=tuple(f"{name}.{method}" for method in methods),
            adds=True,
        )
        for distribution, module in (
            ("mlx-lm", "mlx_lm.models.cache"),
            ("mlx-vlm", "mlx_vlm.models.cache"),
        )
        for name, methods in bodies.items()
    )


PATCH = Patch(
    id="rotating-max-size",
    summary="a host's array in a rotating cache's max_size breaks slices and comparisons",
    targets=_targets(),
    probe="mlx_patches.probes.rotating_max_size:probe",
    module=__name__,
)
