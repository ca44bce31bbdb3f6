"""Every patch with its state in this environment."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from ..activation.profiles import profiles_of
from ..activation.session import session
from ..core.outcome import IN_EFFECT, NOT_NEEDED, Outcome, Status
from ..core.packages import COMMANDS, DISTRIBUTIONS, MODELS
from ..core.patch import Patch
from ..core.record import fields
from .audit import outcomes_of
from .preflight import session_of_readable
from .verdict import patch_severity


class Listed(NamedTuple):
    """A patch and its state here.

    Args:
        profiles: the profiles that it belongs to; empty if it must be requested by its id.
        origin: the distribution that contributes it; empty for patches of mlx_patches.
        status: the status of one target: preferably a needed one that is not in effect, then one
            in effect, then one that is not needed; ``absent`` if no target is installed.
    """

    patch: str
    summary: str
    severity: str
    profiles: tuple[str, ...]
    optional: bool
    origin: str
    status: str
    outcomes: tuple[Outcome, ...]

    def as_dict(self) -> dict[str, Any]:
        shown = ("distribution", "target", "status", "reason")
        targets = [fields(one, *shown) for one in self.outcomes]
        return {**fields(self, *self._fields[:-1]), "targets": targets}


def list_patches(profile: str | None = None) -> list[Listed]:
    """Every patch, in the registry's order, or those of profiles, separated by commas."""
    current = session_of_readable()
    registry = current.registry
    wanted = None if profile is None else set(profile.replace(",", " ").split())
    seen: dict[str, list[Outcome]] = {}
    for one in outcomes_of(map(registry.find_declared, filter(current.relevant, registry.ids()))):
        seen.setdefault(one.patch, []).append(one)
    found = []
    for patch in registry.each_declared():
        of = profiles_of(patch, registry.area(patch.id))
        if wanted is None or wanted & set(of):
            outcomes = tuple(seen.get(patch.id, ()))
            about = (patch.id, patch.summary, patch_severity(patch.id), of, patch.optional)
            found.append(Listed(*about, registry.origin(patch.id), _status(outcomes), outcomes))
    return found


def _status(outcomes: Sequence[Outcome]) -> str:
    """The status of one target: needed but not in effect, then in effect, then not needed."""
    statuses = [one.status for one in outcomes]
    needed = [one for one in statuses if one not in NOT_NEEDED]
    open_ = [one for one in needed if one not in IN_EFFECT]
    spared = [one for one in statuses if one is not Status.ABSENT]
    return str(next(iter([*open_, *needed, *spared]), Status.ABSENT))


def ignore_if(id_: str) -> str:
    only = only_in(session().registry.find_declared(id_))
    if only:
        return f"you do not run {' or '.join(filter(None, (', '.join(only[:-1]), only[-1])))}"
    return "mlx-patches audit MODEL does not list it for your models"


def only_in(patch: Patch) -> list[str]:
    """The only models and servers that run the code of a patch here; empty if others may."""
    current, found = session(), set()
    for target in patch.targets:
        if target.supports or current.installed(target.distribution) is None:
            continue
        package, _, rest = target.module.partition(".")
        kind, _, inside = rest.partition(".")
        model = inside.partition(".")[0]
        if kind == "models" and model in current.matrix.models:
            found.add(model)
        elif kind == "server":
            found.add(f"{package}.server")
        elif package not in MODELS and target.distribution in (*DISTRIBUTIONS.values(), *COMMANDS):
            found.add(target.distribution)
        else:
            return []
    return sorted(found)
