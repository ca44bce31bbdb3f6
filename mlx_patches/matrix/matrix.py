"""The compat matrix: which releases have which defect, and which models need which patch.

``compat_matrix.yaml`` is the one source. Reading YAML, checking it and parsing version ranges
takes tens of milliseconds, so the wheel also carries it compiled to JSON, with the answer for
every measured release; the compiled form is used only where its digest is that of the YAML.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from ..core.errors import MlxPatchesError

SCHEMA = 1
_HERE = Path(__file__).parent
_PACKAGE = _HERE.parent
COMPILED = _HERE / "compiled.json"
_SCHEMA_FILE = _HERE / "schema.json"
_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Rule(NamedTuple):
    """What the matrix says of one patch in one distribution.

    Args:
        affected: the releases that have the defect, as a version specifier.
        fixed: the releases that repaired it themselves; empty where none has.
        affected_bodies: target name to the fingerprints of bodies with the defect.
        sound_bodies: the same for bodies without it.
        releases: every measured release of the distribution, oldest first.
        decided: measured release to ``affected``, ``fixed`` or ``clear``.
        note: added to every reason that comes of the rule.
        declared: the ranges are somebody's word, also on releases that we did not measure.
    """

    affected: str
    fixed: str = ""
    affected_bodies: Mapping[str, frozenset[str]] = _NOTHING
    sound_bodies: Mapping[str, frozenset[str]] = _NOTHING
    releases: tuple[str, ...] = ()
    decided: Mapping[str, str] = _NOTHING
    note: str = ""
    declared: bool = False

    def noted(self, reason: str) -> str:
        """The reason and the note."""
        return f"{reason}; {self.note}" if self.note else reason

    def decide(self, version: str) -> str:
        """``affected``, ``fixed``, ``clear``, or ``unmeasured`` for a release beyond all evidence.

        Pre-releases count as members of a range; a local part (``+git``) does not matter.
        """
        if version in self.decided:
            return self.decided[version]
        from packaging.version import Version

        try:
            parsed = Version(version)
        except ValueError:  # no version, or one of thousands of digits
            return "unmeasured"
        released = Version(parsed.public)
        side = self._side(parsed.public)
        if side != "clear" or self.declared or released in map(Version, self.releases):
            return side
        older = [v for v in self.releases if Version(v) < released]
        newer = [v for v in self.releases if Version(v) > released]
        neighbours = {self._side(v) for v in (*older[-1:], *newer[:1])}
        return "clear" if newer and neighbours == {"clear"} else "unmeasured"

    def _side(self, release: str) -> str:
        from packaging.version import Version

        version = Version(release)
        if _within(self.affected, version):
            return "affected"
        return "fixed" if self.fixed and _within(self.fixed, version) else "clear"


class BrokenSet(NamedTuple):
    """Releases that cannot work together, why, and what to install."""

    when: Mapping[str, str]
    reason: str
    remedy: str

    def matches(self, versions: Mapping[str, str]) -> bool:
        """True where every named distribution is installed at a version in its range."""
        return _all_within(self.when, versions)


class Warned(NamedTuple):
    """A defect of these releases that no patch can repair, and that nobody here has measured.

    Args:
        when: distribution to the versions that have it; all must be installed.
        effect: what a user sees, and when.
        remedy: what to install, or to leave off.
        threads: where it was reported, as ``repository#number``.
        device: ``metal`` where only Apple's GPUs have it; empty for all.
    """

    when: Mapping[str, str]
    effect: str
    remedy: str
    threads: Sequence[str]
    device: str = ""

    def matches(self, versions: Mapping[str, str], devices: Collection[str]) -> bool:
        """True where the releases are installed and this machine has the device."""
        return (not self.device or self.device in devices) and _all_within(self.when, versions)


class CompatMatrix:
    """The loaded matrix. ``source`` names the file in messages."""

    def __init__(self, document: Mapping[str, Any], source: str):
        self.source = source
        self._document = document
        self.releases: dict[str, tuple[str, ...]] = {
            name: tuple(versions) for name, versions in document["releases"].items()
        }
        self.always: tuple[str, ...] = tuple(document["always"])
        self._contributed: dict[str, dict[str, Rule]] = {}

    @classmethod
    def builtin(cls) -> CompatMatrix:
        """The matrix of this package."""
        source = builtin_path()
        try:
            digest = hashlib.sha256(source.read_bytes()).hexdigest()
            compiled = json.loads(COMPILED.read_bytes())
            if compiled["digest"] == digest:
                return cls(compiled["document"], str(source))
        except (OSError, ValueError, KeyError, TypeError):
            pass
        return cls.load(source)

    @classmethod
    def load(cls, path: Path) -> CompatMatrix:
        """Read and check a matrix file.

        Raises:
            MlxPatchesError: naming file, line and key.
        """
        return cls(check(path), str(path))

    def rule(self, patch: str, distribution: str) -> Rule | None:
        """The rule for a patch in a distribution, or None where the matrix has none."""
        if patch in self._contributed:
            return self._contributed[patch].get(distribution)
        raw = self._document["patches"].get(patch, {}).get(distribution)
        if raw is None:
            return None
        bodies = raw.get("bodies", {})
        return Rule(
            affected=raw["affected"],
            fixed=raw.get("fixed", ""),
            affected_bodies={k: frozenset(v.get("affected", ())) for k, v in bodies.items()},
            sound_bodies={k: frozenset(v.get("sound", ())) for k, v in bodies.items()},
            releases=self.releases.get(distribution, ()),
            decided=raw.get("decided", {}),
        )

    def contribute(self, patch: str, rules: dict[str, Rule], optional: bool = False) -> None:
        """Add the rules of another package's patch, which belongs to no model."""
        self._contributed[patch] = rules
        if not optional:
            self.always = (*self.always, patch)

    @cached_property
    def patches(self) -> tuple[str, ...]:
        """The ids that have a rule."""
        return tuple(self._document["patches"])

    @cached_property
    def models(self) -> tuple[str, ...]:
        """The model types that have a row of their own."""
        return tuple(name for name in self._document["models"] if name != "default")

    def patches_for(self, model: str, distribution: str) -> tuple[str, ...]:
        """What a model's row names in a distribution; the row ``default`` where it has no word."""
        rows = self._document["models"]
        default = rows["default"].get(distribution, ())
        return tuple(rows.get(model, {}).get(distribution, default))

    @cached_property
    def broken_sets(self) -> tuple[BrokenSet, ...]:
        """Sets of releases that cannot work at all."""
        return tuple(BrokenSet(**raw) for raw in self._document["broken_sets"])

    @cached_property
    def warnings(self) -> tuple[Warned, ...]:
        """What no patch can repair."""
        return tuple(Warned(**raw) for raw in self._document.get("warnings", ()))

    def compiled(self) -> dict[str, Any]:
        """The document with the answer for each measured release filled in."""
        document: dict[str, Any] = json.loads(json.dumps(self._document))
        for patch, rules in document["patches"].items():
            for distribution, raw in rules.items():
                rule = self.rule(patch, distribution)
                assert rule is not None
                raw["decided"] = {v: rule.decide(v) for v in self.releases.get(distribution, ())}
        return document


def declared_rules(
    patch: str, affected: Mapping[str, str], fixed: Mapping[str, str], note: str = ""
) -> dict[str, Rule]:
    """The rules that another package's word on its own patch makes.

    Raises:
        ValueError: a range is no version specifier, claims too much, or belongs to nothing.
    """
    from packaging.specifiers import SpecifierSet

    if strange := fixed.keys() - affected.keys():
        raise ValueError(f"{patch}: {min(strange)} is fixed and was never affected")
    rules = {}
    for distribution, specifier in affected.items():
        if not str(SpecifierSet(specifier)):
            raise ValueError(f"{patch}: an empty range claims every {distribution}")
        rule = Rule(specifier, fixed.get(distribution, ""), note=note, declared=True)
        point = _in_both(rule.affected, rule.fixed) if rule.fixed else None
        if point is not None:
            raise ValueError(f"{patch}: {distribution} {point} is both affected and fixed")
        rules[distribution] = rule
    return rules


def builtin_path() -> Path:
    """Where the package's matrix is: beside the code in a wheel, one level up in a checkout."""
    inside = _PACKAGE / "compat_matrix.yaml"
    return inside if inside.exists() else _PACKAGE.parent / "compat_matrix.yaml"


def compile_builtin() -> str:
    """The text of the compiled matrix, from the YAML."""
    source = builtin_path()
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    content = {"digest": digest, "document": CompatMatrix.load(source).compiled()}
    return json.dumps(content, indent=None, separators=(",", ":"), sort_keys=True) + "\n"


def check(path: Path) -> dict[str, Any]:
    """Return the document of a matrix file that satisfies the schema and contradicts nothing.

    Raises:
        MlxPatchesError: naming file, line and key.
    """
    import fastjsonschema

    from ..core import files
    from . import plain_yaml

    document, lines = plain_yaml.read(path)

    def fail(at: Iterable[str | int], problem: str) -> MlxPatchesError:
        at = tuple(at)
        known = next(at[:n] for n in range(len(at), -1, -1) if at[:n] in lines or n == 0)
        line = f"line {lines[known]}: " if known in lines else ""
        key, said = map(files.quoted, (".".join(map(str, at)) or "document", problem))
        return MlxPatchesError(f"{path}: {line}{key}: {said}")

    if isinstance(document, dict) and document.get("schema") not in (None, SCHEMA):
        raise fail(
            ("schema",),
            f"version {document['schema']} is not known to this mlx-patches (it reads {SCHEMA}); "
            "upgrade mlx-patches",
        )
    try:
        fastjsonschema.compile(json.loads(_SCHEMA_FILE.read_bytes()))(document)
    except fastjsonschema.JsonSchemaValueException as error:
        at = tuple(int(p) if p.isdigit() else p for p in _real_path(error, document))
        raise fail(at, error.message.replace(error.name or "data", "it", 1)) from None
    _check_ranges(document, fail)
    _check_ids(document, fail)
    return document  # type: ignore[no-any-return]


def _real_path(error: Any, document: Any) -> list[str]:
    """The path of a schema error as keys of the document: the library joins them with dots."""
    name = (error.name or "data").removeprefix("data")
    path: list[str] = []
    node = document
    while name:
        if name.startswith("["):
            index, _, name = name[1:].partition("]")
            path.append(index)
            node = node[int(index)] if isinstance(node, list) else None
            continue
        name = name.removeprefix(".")
        keys = [str(k) for k in node] if isinstance(node, dict) else []
        match = max((k for k in keys if name.startswith(k)), key=len, default=name)
        path.append(match)
        node = node.get(match) if isinstance(node, dict) else None
        name = name[len(match) :]
    return path


def _check_ranges(document: Mapping[str, Any], fail: Any) -> None:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet
    from packaging.version import InvalidVersion, Version

    for distribution, versions in document["releases"].items():
        where = ("releases", distribution)
        try:
            parsed = [Version(version) for version in versions]
        except InvalidVersion as error:
            raise fail(where, str(error)) from None
        if parsed != sorted(set(parsed)):
            raise fail(where, "list each release once, oldest first")
    for patch, rules in document["patches"].items():
        for distribution, rule in rules.items():
            at = ("patches", patch, distribution)
            for key in ("affected", "fixed"):
                try:
                    SpecifierSet(rule.get(key, ""))
                except InvalidSpecifier as error:
                    raise fail((*at, key), str(error)) from None
            if not rule["affected"]:
                raise fail((*at, "affected"), "an empty range claims every release")
            if fixed := rule.get("fixed", ""):
                releases = document["releases"].get(distribution, ())
                point = _in_both(rule["affected"], fixed, releases)
                if point is not None:
                    raise fail(at, f"{point} is both affected and fixed")
            for target, bodies in rule.get("bodies", {}).items():
                both = set(bodies.get("affected", ())) & set(bodies.get("sound", ()))
                if both:
                    raise fail((*at, "bodies", target), f"{min(both)} is both affected and sound")
    for table in ("broken_sets", "warnings"):
        for index, one in enumerate(document.get(table, ())):
            for name, specifier in one["when"].items():
                try:
                    SpecifierSet(specifier)
                except InvalidSpecifier as error:
                    raise fail((table, index, "when", name), str(error)) from None


def _in_both(affected: str, fixed: str, releases: Iterable[str] = ()) -> Any:
    """The first version that is in both ranges, None where there is none to be seen."""
    from packaging.version import Version

    ranges = (affected, fixed)
    points = sorted({*map(Version, releases), *_ends(ranges)})
    return next((p for p in points if all(_within(one, p) for one in ranges)), None)


def _ends(ranges: Iterable[str]) -> Iterator[Any]:
    """The versions at which a range may begin or end, and one just behind each."""
    from packaging.specifiers import SpecifierSet
    from packaging.version import Version

    for one in ranges:
        for specifier in SpecifierSet(one):
            if specifier.operator == "===":  # of a text, which has no place among versions
                continue
            version = Version(specifier.version.removesuffix(".*"))
            yield from (version, Version(f"{version.base_version}.0.1"))


def _check_ids(document: Mapping[str, Any], fail: Any) -> None:
    def known(ids: list[str], at: tuple[str | int, ...]) -> None:
        for index, patch in enumerate(ids):
            if patch not in document["patches"]:
                raise fail((*at, index), f"no patch {patch!r} in patches")

    known(document["always"], ("always",))
    for model, row in document["models"].items():
        for distribution, ids in row.items():
            known(ids, ("models", model, distribution))


def _all_within(when: Mapping[str, str], versions: Mapping[str, str]) -> bool:
    """Whether every named distribution is installed at a version in its range."""
    from packaging.version import Version

    try:
        return all(
            name in versions and _within(specifier, Version(versions[name]))
            for name, specifier in when.items()
        )
    except ValueError:
        return False


def _within(specifier: str, version: Any) -> bool:
    from packaging.specifiers import SpecifierSet

    return SpecifierSet(specifier).contains(version, prereleases=True)
