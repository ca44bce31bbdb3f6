"""Profiles: named sets of patches.

A patch belongs to a profile by its folder below ``mlx_patches/patches``. Patches that refuse input
which the release accepts are listed here by id.
"""

from __future__ import annotations

from ..core.errors import MlxPatchesError
from .boot import SAFE


class Profile:
    """A set of patches.

    Args:
        areas: folders below ``mlx_patches/patches`` whose default patches belong to it.
        models: importing a model activates the patches that its entry in the matrix names.
        also: optional patches that belong to it.
    """

    def __init__(
        self,
        areas: frozenset[str] = frozenset(),
        models: bool = False,
        also: frozenset[str] = frozenset(),
    ):
        self.areas = areas
        self.models = models
        self.also = also

    def has_area(self, area: str) -> bool:
        """Whether a folder's patches belong to it; empty stands for other packages' patches."""
        return area in self.areas or (not area and bool(self.areas))


BATCH = frozenset({"caches", "positions", "masks", "models"})
SERVER = frozenset({"generation", "server", "loading", "vllm_mlx", "omlx"})
# A model's own code runs only where the user agreed to it.
CONSENT = frozenset({"model-code-consent"})
# Limits what a request can make a server open, and who may ask.
REQUESTS = frozenset(
    {"host-media", "media-limits", "media-policy", "request-models", "vlm-api-key"}
)

PROFILES = {
    # Each row of a batch gets the result that it gets alone.
    "batch": Profile(BATCH, models=True),
    # Servers and generators answer every request.
    "server": Profile(SERVER),
    # Requests and model folders reach only what the user allowed.
    "security": Profile(also=CONSENT | REQUESTS),
    SAFE: Profile(BATCH | SERVER, models=True, also=CONSENT),
}
# The default of `apply()`: no patch in it refuses input that the release accepts.
DEFAULT = "batch,server"


def choose(names: str) -> Profile:
    """The union of profiles.

    Args:
        names: separated by commas or spaces.

    Raises:
        MlxPatchesError: one is unknown, or none is named.
    """
    wanted = names.replace(",", " ").split()
    for name in wanted or [names]:
        if name not in PROFILES:
            raise MlxPatchesError(f"no profile {name!r}; there are {', '.join(PROFILES)}")
    chosen = [PROFILES[name] for name in wanted]
    return Profile(
        areas=frozenset().union(*(one.areas for one in chosen)),
        models=any(one.models for one in chosen),
        also=frozenset().union(*(one.also for one in chosen)),
    )


def profiles_of(area: str, patch: str, by_default: bool) -> tuple[str, ...]:
    """The profiles that a patch belongs to, by its folder, its id and whether it is optional."""
    return tuple(
        name
        for name, one in PROFILES.items()
        if patch in one.also or (by_default and one.has_area(area))
    )
