"""The release sets of release_sets.toml, as arguments for uv."""

from __future__ import annotations

import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
# Our own dependencies are younger than the older sets.
_ANY_AGE = (
    "wrapt",
    "fastjsonschema",
    "click",
    "rich",
    "packaging",
    "pyyaml",
    "pytest",
    "pytest-xdist",
    "execnet",
)


@dataclass(frozen=True)
class ReleaseSet:
    """One environment: a release, as of a date, with what has to be pinned beside it."""

    name: str
    date: str
    pins: dict[str, str]

    @property
    def distribution(self) -> str:
        return self.name.split()[0]

    @property
    def version(self) -> str:
        return self.name.split()[1]

    @property
    def slug(self) -> str:
        return self.name.replace(" ", "-")

    def requirements(self) -> list[str]:
        """What to install; MLX comes with its CPU back end where there is no Metal."""
        pins = {self.distribution: self.version, **self.pins}
        mlx = "mlx[cpu]" if sys.platform == "linux" else "mlx"
        version = pins.pop("mlx", "")
        first = f"{mlx}=={version}" if version else mlx
        return [first, *(f"{name}=={version}" for name, version in pins.items())]

    def age_limit(self) -> list[str]:
        """Arguments that make uv resolve as of the set's date."""
        limit = ["--exclude-newer", self.date]
        for name in _ANY_AGE:
            limit += ["--exclude-newer-package", f"{name}=2999-12-31"]
        return limit


def load() -> dict[str, ReleaseSet]:
    """Every set by name, in the file's order."""
    with (HERE / "release_sets.toml").open("rb") as file:
        raw = tomllib.load(file)
    return {
        name: ReleaseSet(name, str(entry["date"]), entry.get("pins", {}))
        for name, entry in raw.items()
    }
