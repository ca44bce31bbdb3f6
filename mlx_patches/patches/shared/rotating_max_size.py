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

from ..._patch import Attribute, Patch, Target


def as_int(value: Any) -> Any:
    """The ``int`` that a value means; the value itself where it means none."""
    if type(value) is int or value is None:
        return value
    if hasattr(value, "tolist"):
        elements = value.reshape(-1).tolist()
        value = elements[0] if elements and len(set(elements)) == 1 else value
    if isinstance(value, bool):
        return value
    if isinstance(value, int) or (isinstance(value, str) and value.isdigit()):
        return int(value)
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _max_size(original: Any) -> Attribute:
    def read(cache: Any) -> Any:
        try:
            value = cache.__dict__["max_size"]
        except KeyError:
            kind = type(cache).__name__
            raise AttributeError(f"{kind!r} object has no attribute 'max_size'") from None
        return value if type(value) is int else as_int(value)  # it may predate the patch

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
