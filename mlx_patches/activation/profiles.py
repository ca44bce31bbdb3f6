"""Profiles: named sets of patches.

A patch belongs to a profile by its folder below ``mlx_patches/patches``, or by naming it
(``Patch.profiles``), as patches that reject input do.
"""

from ..core.errors import MlxPatchesError
from ..core.patch import Patch
from ..core.record import Record
from .settings import SAFE


class Profile(Record):
    """A set of patches.

    Args:
        areas: folders below ``mlx_patches/patches`` whose default patches belong to it.
        models: importing a model activates the patches that its entry in the matrix names.
        names: patches that name one of these profiles belong to it as well.
    """

    areas: frozenset[str] = frozenset()
    models: bool = False
    names: frozenset[str] = frozenset()

    def has_area(self, area: str) -> bool:
        """Whether a folder's patches belong to it; empty stands for other packages' patches."""
        return area in self.areas or (not area and bool(self.areas))


BATCH = frozenset({"caches", "positions", "masks", "models"})
SERVER = frozenset({"generation", "server", "loading", "vllm_mlx", "omlx"})

PROFILES = {
    # Each row of a batch gets the result of a single request.
    "batch": Profile(BATCH, models=True),
    # Servers and generators answer all requests.
    "server": Profile(SERVER),
    # Requests and model folders reach only what the user allows.
    "security": Profile(names=frozenset({"security"})),
    SAFE: Profile(BATCH | SERVER, models=True, names=frozenset({SAFE})),
}
# The default of `apply()`: none of its patches rejects input that the release accepts.
DEFAULT = "batch,server"


def choose(names: str) -> Profile:
    """The union of profiles, whose names are separated by commas or spaces."""
    wanted = names.replace(",", " ").split()
    for name in wanted or [names]:
        if name not in PROFILES:
            raise MlxPatchesError(f"no profile {name!r}; choose from {', '.join(PROFILES)}")
    chosen = [PROFILES[name] for name in wanted]
    return Profile(
        areas=frozenset().union(*(one.areas for one in chosen)),
        models=any(one.models for one in chosen),
        names=frozenset().union(*(one.names for one in chosen)),
    )


def profiles_of(patch: Patch, area: str) -> tuple[str, ...]:
    """The profiles that a patch belongs to; ``area`` is its folder."""
    return tuple(
        name
        for name, one in PROFILES.items()
        if not one.names.isdisjoint(patch.profiles) or (not patch.optional and one.has_area(area))
    )
