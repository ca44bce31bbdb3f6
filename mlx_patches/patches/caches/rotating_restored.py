"""A rotating batch that was restored from its saved state dies, or decodes from the wrong place.

Why
    ``from_state`` makes the cache without ``__init__``, and no state holds ``_lengths``: the
    next chunk, filter or finalize raises AttributeError. Where the rest of the state is saved
    as text, ``bool("False")`` is true, so a buffer that never wrapped is read as if it had.
How
    ``_lengths`` is None until it is set, as after ``__init__``. ``rotated`` is read from the
    text that it was saved as.
Upstream
    mlx-lm 0.32.0 saves no text; nothing restores ``_lengths`` yet.
Retire when
    ``from_state`` sets ``_lengths`` in every supported release.
"""

from __future__ import annotations

from typing import Any

from ...core.patch import Attribute, Patch, Target

_CLASS = "BatchRotatingKVCache"
_MODULES = (("mlx-lm", "mlx_lm.models.cache"), ("mlx-vlm", "mlx_vlm.models.cache"))


def lengths(cache: Any) -> Any:
    """Each row's length while right padding is pending; None where there is none."""
    return cache.__dict__.get("_lengths")


def reading_text(original: property) -> property:
    """``meta_state`` whose setter knows "False" from "True"."""
    assert original.fget is not None and original.fset is not None
    get, put = original.fget, original.fset

    def save(cache: Any) -> Any:
        return get(cache)

    def restore(cache: Any, saved: Any) -> None:
        put(cache, saved)
        cache.rotated = truth(saved[-1], cache.rotated)

    return property(save, restore, original.fdel, original.__doc__)


def truth(saved: Any, read: bool) -> bool:
    """What a text says; what was read where it is no text."""
    return saved == "True" if saved in ("False", "True") else read


def _targets(distribution: str, module: str) -> tuple[Target, ...]:
    return (
        Target(
            distribution,
            module,
            f"{_CLASS}._lengths",
            lambda original: Attribute("_lengths", lengths),
            body=(f"{_CLASS}.__init__", f"{_CLASS}.state"),
            adds=True,
        ),
        Target(distribution, module, f"{_CLASS}.meta_state", reading_text),
    )


PATCH = Patch(
    id="rotating-restored",
    summary="a rotating batch restored from its saved state crashes or reads its window wrongly",
    targets=tuple(target for place in _MODULES for target in _targets(*place)),
    probe="mlx_patches.probes.rotating_restored:probe",
    module=__name__,
)
