"""Writes the file that activates the patches in an environment, and removes it."""

import os
import sys
import sysconfig
from pathlib import Path

from ..core.contribution import Host
from ..core.distributions import canonical
from ..core.errors import MlxPatchesError
from ..core.files import write
from ..core.packages import SERVERS
from .profiles import choose
from .settings import OFF, SAFE, STRICT, SWITCH

NAME = "mlx_patches_boot.pth"
# Used from Python 3.15 on, in place of a .pth file's import line, which ends with Python 3.18.
START_NAME = "mlx_patches_boot.start"
START_FROM = (3, 15)

# Runs when sys.path is complete. If mlx_patches was removed but this file was not, it does nothing;
# in strict mode it raises, so that no process starts without its patches.
SOURCE = """
def _defer(site):
    after = site.execsitecustomize
    def run():
        after()
        try:
            from mlx_patches.activation.boot import start
            start({arguments})
        except Exception:
            import os
            def setting(name):
                return os.environ.get(name, "").strip().lower()
            if setting({strict!r}) not in {lenient!r} and setting({switch!r}) not in {off!r}:
                raise
    site.execsitecustomize = run
_defer(site)
"""


def line(limit: Host | None = None, profile: str = SAFE) -> str:
    """The line that ``site`` executes at the start of each process of the environment."""
    arguments = f"profile={profile!r}"
    if limit is not None:
        arguments = f"{limit.name!r}, {limit.scripts!r}, {limit.modules!r}, {arguments}"
    off = sorted(OFF)
    settings = {"strict": STRICT, "switch": SWITCH, "off": off, "lenient": ["", *off]}
    source = SOURCE.format(arguments=arguments, **settings)
    return f"import site; exec({source!r})\n"


def limit_to(*hosts: str) -> Host:
    """How the processes of installed hosts are started, according to their metadata."""
    found = [_find_host(host) for host in dict.fromkeys(hosts)]
    scripts, modules = (
        tuple(dict.fromkeys(name for one in found for name in getattr(one, part)))
        for part in ("scripts", "modules")
    )
    return Host(", ".join(one.name for one in found), scripts, modules)


def _find_host(host: str) -> Host:
    import importlib_metadata

    from .contributions import hosts

    distribution = SERVERS.get(host, host)
    try:
        found = importlib_metadata.distribution(distribution)
    except importlib_metadata.PackageNotFoundError:
        raise MlxPatchesError(
            f"{host} is not installed in this environment; install it or omit --host"
        ) from None
    if host in SERVERS:
        return Host(host, (host,), (host.partition(".")[0],))
    name = canonical(host)
    for own in hosts().values():
        if canonical(own.name) == name:
            return own._replace(name=host)
    commands = found.entry_points.select(group="console_scripts")
    if not commands:
        raise MlxPatchesError(f"{host} installs no command; omit --host")
    modules = {command.module.partition(".")[0] for command in commands}
    modules.add(name.replace("-", "_"))
    return Host(host, tuple(sorted(c.name for c in commands)), tuple(sorted(modules)))


def enable(limit: Host | None = None, profile: str = SAFE) -> Path:
    """Write the file, for all processes or those of one host; returns its path."""
    choose(profile)
    path = _path()
    try:
        write(path, line(limit, profile))
        if sys.version_info >= START_FROM and limit is None and profile == SAFE:
            write(path.with_name(START_NAME), "mlx_patches.activation.boot:start\n")
        else:
            path.with_name(START_NAME).unlink(missing_ok=True)
    except OSError as error:
        raise MlxPatchesError(
            f"{path}: cannot be written ({error.strerror}); use mlx-patches run, or"
            " mlx_patches.apply() in your program"
        ) from None
    return path


def disable() -> Path | None:
    """Remove the file; returns its path, or None if there was none."""
    path = _path()
    # On a read-only file system, the removal of a missing file fails too.
    found = [one for one in (path.with_name(START_NAME), path) if os.path.lexists(one)]
    try:
        for one in found:
            one.unlink(missing_ok=True)
    except OSError as error:
        raise MlxPatchesError(
            f"{path}: cannot be removed ({error.strerror}); make it writable, or start processes"
            f" with {SWITCH}=0"
        ) from None
    return path if path in found else None


def _path() -> Path:
    return Path(sysconfig.get_paths()["purelib"]) / NAME
