"""``import mlx_patches.auto``: the one-line form of ``mlx_patches.apply()``.

Meant for places where an exception would take a host down: a failure is logged, unless
``MLX_PATCHES_STRICT`` is set. With ``MLX_PATCHES=0`` it does nothing. vLLM calls ``activate`` in
each of its processes; wrapt calls ``hook`` in programs that discover its hooks in our entry points.
"""

import logging
import sys
from types import ModuleType

import mlx_patches

from .activation import settings, started


def activate() -> None:
    """Apply the patches, unless switched off. A failure is logged, or raised if strict."""
    if settings.off():
        settings.warn_of_junk()
        return
    try:
        mlx_patches.apply(profile=None if settings.profile() else started.profile)
    except Exception:
        if settings.strict():
            raise
        logging.getLogger("mlx_patches").warning("mlx_patches is not active", exc_info=True)
        return
    if started.announces and sys.stderr is not None:
        started.announces = False
        profile = settings.profile() or started.profile
        print(f"mlx-patches: patches of profile {profile} are active", file=sys.stderr)


def hook(module: ModuleType) -> None:
    """``activate`` as a post-import hook of wrapt."""
    activate()


activate()
