"""Checks whether an environment can be audited; an unreadable one must not pass."""

import ast
import importlib.metadata
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

from ..activation.children import child_environment, find_python
from ..activation.session import Session, session
from ..core.distributions import canonical, installers, source_file
from ..core.errors import MlxPatchesError
from ..core.files import quote
from ..core.packages import DISTRIBUTIONS, MODEL_PACKAGES, package_of
from ..core.resolve import in_file
from .modules import package_of_models

# For a cold import on a slow disk; a warm one takes less than a second.
IMPORT_SECONDS = 60


def session_of_readable() -> Session:
    """The session; MlxPatchesError if the metadata of a package cannot be read."""
    try:
        current = session()
        for distribution in DISTRIBUTIONS.values():
            current.installed(distribution)
    except UnicodeDecodeError as error:
        raise MlxPatchesError(
            f"the metadata of a package in {sys.prefix} is not text ({error.reason}): install"
            " its package again"
        ) from None
    return current


def explain_unaudited(
    current: Session,
    ids: Collection[str],
    families: Mapping[str, str],
    names: Callable[[str], tuple[str, ...]],
) -> tuple[str, ...]:
    """The reasons why the environment cannot be audited, one sentence each; empty if it can.

    Args:
        families: distribution to the audited model's module; empty without a model.
        names: returns the names that patches declare in a module's file.
    """
    found = list(_broken_metadata(current))
    targets = {
        target.module: target
        for id_ in ids
        for target in current.registry.find_declared(id_).targets
        if current.installed(target.distribution)
    }
    if not targets and not found:
        found.append(f"no known MLX package is installed in {sys.prefix}")
    if any(map(current.installed, MODEL_PACKAGES.values())):
        found += _broken_mlx(current)
    found += _missing(current, {module: one.distribution for module, one in targets.items()})
    found += [
        f"{source_file(module)} is not Python: install {target.distribution} again"
        for module, target in sorted(targets.items())
        if in_file(target, names(module)).missing.endswith("cannot be read as Python")
    ]
    for distribution, family in families.items():
        file = source_file(f"{package_of_models(distribution)}.{family}")
        try:
            ast.parse(file.read_bytes() if file else b"")
        except (OSError, SyntaxError, ValueError):
            found.append(f"{file} is not Python: install {distribution} again")
    return tuple(found)


def _broken_metadata(current: Session) -> Iterator[str]:
    from packaging.version import InvalidVersion, Version

    for package, distribution in DISTRIBUTIONS.items():
        here, again = current.installed(distribution), f"install {distribution} again"
        file = source_file(package)
        if here is not None:
            try:
                Version(here.version)
            except InvalidVersion:
                problem = f"has no valid version: {here.version[:40]!r}"
                yield f"the metadata of {distribution} {problem}: {again}"
        # Rapid-MLX contains its own package of this name, which no patch targets.
        elif file and not set(map(canonical, installers().get(package, ()))) - {distribution}:
            yield f"{file.parent} exists, but {distribution} has no metadata: {again}"


def _broken_mlx(current: Session) -> Iterator[str]:
    """Why MLX cannot be imported; a child tries it, because MLX may be without a back end."""
    if (here := current.installed("mlx")) is None and find_spec("mlx") is None:
        yield f"mlx is not installed in {sys.prefix}: install mlx"
    elif here and "mlx.core" not in sys.modules and _has_core():
        try:
            code, errors = _import_mlx()
        except MlxPatchesError as error:
            yield f"{here} was not tried: {error}"
        except subprocess.TimeoutExpired:
            yield f"{here} was not imported within {IMPORT_SECONDS} s: see why its import waits"
        else:
            last = (errors.strip().splitlines() or [f"exit code {code}"])[-1]
            remedy = "install mlx[cpu] or mlx[cuda]" if "libmlx" in last else "install mlx again"
            if code:
                yield f"{here} cannot be imported ({quote(last)}): {remedy}"


def _import_mlx() -> tuple[int, str]:
    """Import MLX in a child; returns its exit code and its errors."""
    # The alarm ends the child if this process is killed meanwhile.
    code = f"import signal; signal.alarm({IMPORT_SECONDS + 1}); import mlx.core"
    done = subprocess.run(
        [find_python(), "-P", "-c", code],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        errors="replace",
        env=child_environment(),
        timeout=IMPORT_SECONDS,
    )
    return done.returncode, done.stderr


def _has_core() -> bool:
    folder = importlib.metadata.distribution("mlx").locate_file("mlx")
    return any(Path(str(folder)).glob("core.*"))


def _missing(current: Session, targets: Mapping[str, str]) -> Iterator[str]:
    """The modules that a release's RECORD lists and that are missing."""
    for package, distribution in DISTRIBUTIONS.items():
        if current.installed(distribution) is None:
            continue
        if f"{package}.models" in MODEL_PACKAGES and not source_file(f"{package}.models.cache"):
            yield f"{package}.models.cache is missing: install {distribution} again"
        recorded = _read_record(distribution)
        for module in sorted(name for name, whose in targets.items() if whose == distribution):
            path = module.replace(".", "/")
            listed = recorded & {f"{path}.py", f"{path}/__init__.py"}
            if listed and not source_file(module) and not module.endswith(".models.cache"):
                yield f"{min(listed)} is missing: install {distribution} again"


def _read_record(distribution: str) -> set[str]:
    """The files in a distribution's RECORD; empty if it has none, or another copy is imported."""
    try:
        found = importlib.metadata.distribution(distribution)
        text = found.read_text("RECORD") or ""
    except (importlib.metadata.PackageNotFoundError, UnicodeDecodeError):
        return set()
    file = source_file(package_of(distribution))
    if file is None or not file.is_relative_to(Path(str(found.locate_file("")))):
        return set()
    return {line.partition(",")[0] for line in text.splitlines()}
