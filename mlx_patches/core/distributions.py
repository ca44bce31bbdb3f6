"""Installed distributions: version, commit of a direct-url install, and source files.

This module uses the standard library's ``importlib.metadata`` and normalizes names itself: it runs
at start-up, where ``importlib_metadata`` and ``packaging`` would cost most of the 15 ms that
``apply()`` may add. Only functions marked "not for start-up" use ``importlib_metadata``.
"""

import importlib.metadata
import json
import os
import re
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any, NamedTuple

from .errors import MlxPatchesError
from .packages import MODELS


class Installed(NamedTuple):
    """One installed distribution; ``commit`` is set only if a direct-url install recorded it."""

    name: str
    version: str
    commit: str | None = None

    @property
    def editable(self) -> bool:
        """Whether it is an editable install. Reads the metadata: not for start-up."""
        return bool(getattr(getattr(origin(self.name), "dir_info", None), "editable", False))

    def __str__(self) -> str:
        commit = f" at commit {self.commit[:12]}" if self.commit else ""
        return f"{self.name} {self.version}{commit}"


def find(name: str) -> Installed | None:
    """Return the installed distribution of this name, or None.

    The version is the first ``Version:`` line of METADATA, read without the email parser, whose
    import takes several milliseconds. A dist-info without METADATA, left behind by an incomplete
    uninstall, is ignored. The version of a model package that was copied rather than installed, to
    a host's folder or to ``PYTHONPATH``, is the one in its code.
    """
    for distribution in importlib.metadata.distributions(name=name):
        try:
            metadata = distribution.read_text("METADATA") or distribution.read_text("PKG-INFO")
        except UnicodeDecodeError as error:
            raise MlxPatchesError(
                f"the metadata of {name} in {sys.prefix} is not text ({error.reason}): install"
                " its package again"
            ) from None
        line = f"\n{metadata or ''}".partition("\nVersion:")[2].partition("\n")[0]
        version = line.strip()
        if version:
            return Installed(name, version, _commit(distribution))
    return _find_copy(name)


def _find_copy(name: str) -> Installed | None:
    """A model package without metadata, with the version in its code."""
    package = canonical(name).replace("-", "_")
    is_there = package in MODELS and _find_package(package)
    for module in ("_version", "version") if is_there else ():
        file = source_file(f"{package}.{module}")
        try:
            text = file.read_text("utf-8", "replace") if file else ""
        except OSError:
            continue
        if found := re.search(r"""^__version__ *= *["']([\w.+!-]+)["']""", text, re.MULTILINE):
            return Installed(name, found[1])
    return None


def origin(name: str) -> Any:
    """Return the ``direct_url.json`` of a distribution, as nested attributes, or None.

    Not for start-up.
    """
    import importlib_metadata

    try:
        return importlib_metadata.distribution(name).origin
    except (importlib_metadata.PackageNotFoundError, ValueError):
        return None


def installers() -> dict[str, list[str]]:
    """Map each top-level package to the distributions that installed it.

    Reads all metadata: not for start-up.
    """
    import importlib_metadata

    try:
        found = importlib_metadata.packages_distributions()
    except (OSError, KeyError):  # metadata that an uninstall left behind has no name
        return {}
    return {name: list(dict.fromkeys(filter(None, owners))) for name, owners in found.items()}


def canonical(name: str) -> str:
    """A distribution's normalized name, as ``packaging.utils.canonicalize_name`` returns it."""
    return re.sub("[-_.]+", "-", name).lower()


def source_file(module: str) -> Path | None:
    """Find the source file of a module without importing it or its parents."""
    top, *parts = module.split(".")
    spec = _find_package(top)
    if spec is None:
        return None
    if not parts:
        return Path(spec.origin) if spec.origin and spec.origin.endswith(".py") else None
    for location in spec.submodule_search_locations or ():
        inside = os.path.join(location, *parts)
        for file in (os.path.join(inside, "__init__.py"), f"{inside}.py"):
            if os.path.isfile(file):  # an audit looks up thousands
                return Path(file)
    return None


def line_of(file: Path, name: str) -> int:
    """The first line of a file that begins with a name, else that contains it; 0 if none does."""
    try:
        lines = file.read_text(errors="replace").splitlines()
    except OSError:
        return 0
    begins = re.compile(rf"{re.escape(name)}\s*[:=]")
    numbered = list(enumerate(lines, 1))
    found = [n for n, line in numbered if begins.match(line)]
    return next(iter(found or [n for n, line in numbered if name in line]), 0)


def is_shadowed(name: str, module: str) -> bool:
    """Whether Python finds another module in place of an installed distribution's."""
    for distribution in importlib.metadata.distributions(name=name):
        own = Path(str(distribution.locate_file(module.replace(".", "/") + ".py")))
        found = source_file(module)
        return own.is_file() and not (found and own.samefile(found))
    return False


# Specs by (package, sys.path): an audit looks up hundreds of modules in a few packages.
_packages: dict[tuple[str, tuple[str, ...]], ModuleSpec] = {}


def _find_package(name: str) -> ModuleSpec | None:
    key = (name, tuple(sys.path))
    if key in _packages:
        return _packages[key]
    # An editable install may have setuptools' finder in place of a path.
    editable = (f for f in sys.meta_path if getattr(f, "__module__", "").startswith("__editable__"))
    found = PathFinder.find_spec(name, sys.path)
    found = found or next(filter(None, (one.find_spec(name, None) for one in editable)), None)
    if found is not None:  # else it may be installed later
        _packages[key] = found
    return found


def _commit(distribution: importlib.metadata.Distribution) -> str | None:
    text = distribution.read_text("direct_url.json")
    try:
        found = json.loads(text)["vcs_info"]["commit_id"] if text else None
    except (ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, str) else None
