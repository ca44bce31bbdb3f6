"""The known host servers, and the audit's report on one of them in this environment."""

import contextlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.distributions import Installed, canonical
from ..core.errors import MlxPatchesError
from ..core.files import quote
from ..core.outcome import IN_EFFECT, Outcome, Status
from ..core.packages import DISTRIBUTIONS, MODEL_PACKAGES
from ..core.record import fields
from ..evidence import requests
from ..matrix.ranges import BrokenSet

KNOWN = ("vllm-mlx", "omlx", "rapid-mlx", "mlx-openai-server", "mlx-engine")


@dataclass(frozen=True, slots=True)
class HostReport:
    """One host in this environment.

    Args:
        broken: sets of installed releases, with the host or MLX, that cannot work.
        open: the needed patches that are not in effect, but would be after activation.
        blocked: the needed patches that activation cannot apply: drifted, in conflict, failed, …
        limited_to: the other host that this environment is enabled for, or empty.
        requests: what the server lab found wrong in this release, by kind.
    """

    installed: Installed
    unmet: tuple[str, ...]
    broken: tuple[BrokenSet, ...]
    repaired: tuple[str, ...]
    open: tuple[str, ...]
    blocked: tuple[str, ...] = ()
    limited_to: str = ""
    requests: tuple[str, ...] = ()

    @property
    def advice(self) -> str:
        """The remedy, in one line."""
        name = self.installed.name
        if self.broken:
            return f"{self.installed}: {self.broken[0].reason}: {self.broken[0].remedy}"
        if self.unmet:
            return f"{self.installed} requires {', '.join(self.unmet)}: install these versions"
        parts = []
        if self.open:
            count = f"{len(self.open)} defect{'' if len(self.open) == 1 else 's'}"
            remedy = f"mlx-patches enable --host {name}"
            if self.limited_to:
                remedy = f"mlx-patches enable (currently only enabled for {self.limited_to})"
            parts.append(f"{count} to repair in this environment: {remedy}")
        if self.blocked:
            parts.append(
                f"enabling does not repair {', '.join(self.blocked)}: see the reasons (-v)"
            )
        if parts:
            return f"{self.installed}: {'; '.join(parts)}"
        if self.repaired:
            return f"{self.installed}: nothing to do; active patches: {len(self.repaired)}"
        return f"{self.installed}: no known defect here"

    @property
    def finding(self) -> bool:
        """Whether the user must act."""
        return bool(self.broken or self.unmet or self.open or self.blocked)

    def as_dict(self) -> dict[str, Any]:
        own = fields(self, "unmet", "repaired", "open", "blocked", "advice", "requests")
        return fields(self.installed, "name", "version") | own


def report(
    host: Installed | None,
    name: str,
    installed: Sequence[Installed],
    broken: Collection[BrokenSet],
    outcomes: Sequence[Outcome],
    limited_to: str = "",
) -> HostReport:
    if host is None:
        here = [one.name for one in installed if canonical(one.name) in KNOWN]
        known = f"; installed hosts: {', '.join(here)}" if here else ""
        hint = f"{known}; install it or omit --host"
        raise MlxPatchesError(f"{quote(name)} is not installed in this environment{hint}")

    def ids(wanted: Callable[[Outcome], bool]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(o.patch for o in outcomes if wanted(o)))

    concerned = {canonical(name), "mlx"}
    return HostReport(
        installed=host,
        unmet=unmet(name, installed),
        broken=tuple(one for one in broken if concerned & set(map(canonical, one.when))),
        repaired=ids(lambda o: o.status in IN_EFFECT),
        open=ids(lambda o: o.finding and o.status is Status.DISABLED),
        blocked=ids(lambda o: o.finding and o.status is not Status.DISABLED),
        limited_to=limited_to,
        requests=tuple(requests.summary(requests.load(canonical(host.name), host.version))),
    )


def list_used(host: str) -> set[str]:
    """The distributions that a host runs: itself and its requirements, transitively.

    A host that requires model packages only by extras may run each of them.
    """
    from .recommend import host_limits

    used: set[str] = set()
    left = {canonical(host)}
    while left:
        used.add(name := left.pop())
        with contextlib.suppress(MlxPatchesError):  # it is not installed
            left |= set(host_limits(name)) & set(DISTRIBUTIONS.values()) - used
    models = set(MODEL_PACKAGES.values())
    return used if used & models else used | models


def unmet(host: str, installed: Sequence[Installed]) -> tuple[str, ...]:
    """The host's requirements that the installed packages do not meet."""
    from packaging.version import InvalidVersion, Version

    from ..matrix.ranges import is_within
    from .recommend import host_limits

    versions = {canonical(one.name): one.version for one in installed}
    found = []
    for name, specifier in host_limits(host).items():
        with contextlib.suppress(KeyError, InvalidVersion):
            version = Version(versions[name])
            if not is_within(specifier, version):
                found.append(f"{name}{specifier} (installed: {version})")
    return tuple(found)
