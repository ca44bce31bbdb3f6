"""Runs other projects' own tests, unchanged, without and with the patches.

    python tools/downstream/run.py                       every recipe of recipes.toml
    python tools/downstream/run.py 'mlx-lm 0.31.3'       one of them
    python tools/downstream/run.py 'mlx-lm 0.31.3' --test tests/test_models.py

`mlx-patches run` applies the patches, as an operator would. A recipe fails if a test passes without
the patches and fails with them, in repeated runs too, unless recipes.toml lists it; if a listed
test passes with its patch; or if a patch fails. Environments, tests and pytest's logs are kept in
.nox/downstream. Needs uv, and the package index for missing packages.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

import compare  # noqa: E402
import release_sets  # noqa: E402

RECIPES = HERE / "recipes.toml"
PLACE = release_sets.ROOT / ".nox" / "downstream"
# Not editable: that would put this repository's tests before the project's on the path.
# Without --refresh-package, uv installs the wheel that it built before the last change.
INSTALL_OURS = (
    *("-m", "uv", "pip", "install", "--quiet", str(release_sets.ROOT)),
    *("--refresh-package", "mlx-patches", "--reinstall-package", "mlx-patches"),
)
# A run is stopped if it writes nothing for this many times a test's time limit.
PATIENCE = 5
# Exit codes of pytest: internal error, usage error.
NOT_RUN = (3, 4)
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


@dataclass(frozen=True)
class Known:
    """Why a test rightly fails with a patch."""

    patch: str
    why: str


@dataclass(frozen=True)
class Recipe:
    """How to run one release's own tests: a project of recipes.toml at one release.

    ``differs`` maps a test that rightly fails with the patches to the reason.
    """

    name: str
    tests: str
    git: str = ""
    requires: Sequence[str] = ()
    stand_ins: dict[str, str] = field(default_factory=dict)
    seconds: int = 60
    lift: Sequence[str] = ()
    differs: dict[str, Known] = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """Each test's outcome, and the patches' statuses."""

    outcomes: dict[str, str]
    statuses: list[dict[str, str]]

    def patches(self, status: str) -> list[str]:
        """The ids of the patches that have this status at a target."""
        return list(dict.fromkeys(row["patch"] for row in self.statuses if row["status"] == status))


def main() -> None:
    recipes = load()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipe", nargs="*", help="only this recipe; default: all")
    parser.add_argument("--test", action="append", help="only this test, or file of tests")
    options = parser.parse_args()
    if unknown := [name for name in options.recipe if name not in recipes]:
        sys.exit(f"{unknown[0]}: no such recipe; there are {', '.join(recipes)}")
    failed = {
        name: reasons
        for name in options.recipe or recipes
        if (reasons := judge(recipes[name], options.test))
    }
    if failed:
        sys.exit("\n".join(f"{name}: {', '.join(reasons)}" for name, reasons in failed.items()))


def load() -> dict[str, Recipe]:
    """Every recipe by its release set, in the file's order."""
    found = {}
    for project, raw in tomllib.loads(RECIPES.read_text()).items():
        releases, known = raw.pop("releases"), raw.pop("differs", [])
        for release in releases:
            name = f"{project} {release}"
            differs = {
                test: Known(one["patch"], one["why"])
                for one in known
                if release in one.get("releases", releases)
                for test in one["tests"]
            }
            found[name] = Recipe(name, **raw, differs=differs)
    return found


def judge(recipe: Recipe, tests: Sequence[str] | None = None) -> list[str]:
    """Run a recipe without and with the patches; print differences; return why it fails."""
    one = release_sets.load()[recipe.name]
    folder = PLACE / one.slug
    needed = ("pytest", "pytest-timeout", *recipe.requires)
    python = release_sets.make(one, folder / "environment", *needed, package=())
    # Each time: an environment that is made stays as it is.
    do(recipe, [sys.executable, *INSTALL_OURS, "--python", str(python)])
    source = fetch(recipe, one, folder / "source")
    make_stand_ins(recipe, python, folder / "hub")

    def again(some: Iterable[str]) -> tuple[compare.Outcomes, compare.Outcomes]:
        runs = [suite(recipe, python, source, list(some), on) for on in (False, True)]
        return runs[0].outcomes, runs[1].outcomes

    (folder / "pytest.ini").touch()  # or a release without one would use this repository's
    for log in folder.glob("*.log"):
        log.unlink()
    print(f"== {recipe.name}", flush=True)
    runs = [suite(recipe, python, source, tests or [recipe.tests], on) for on in (False, True)]
    without, with_ = (run.outcomes for run in runs)
    statuses = Counter(row["status"] for row in runs[1].statuses)
    print(compare.table(without, with_))
    print("patches:", ", ".join(f"{n} {status}" for status, n in statuses.items()) or "none")
    if runs[0].statuses:
        sys.exit(f"{recipe.name}: the run without the patches has patches")
    if not statuses["applied"]:
        sys.exit(f"{recipe.name}: no patch is applied in the run with the patches")
    for row in runs[1].statuses:
        if row["status"] in ("failed", "lost", "late", "conflict"):
            print(f"  {row['status']}: {row['patch']} {row['target']}: {row['reason']}")
    found = compare.differences(without, with_)
    listed = {test: pair for test, pair in found.items() if is_listed(recipe, test, pair)}
    unlisted = {test: pair for test, pair in found.items() if test not in listed}
    found, chance = compare.settle(unlisted, again)
    broken = report(recipe, listed | found, chance)
    repaired = find_gone(recipe, runs, listed)
    for test in repaired:
        print(f"listed, but passes with the patches: {test} ({recipe.differs[test].patch})")
    failed = runs[1].patches("failed")
    return [
        *([f"{len(broken)} tests broken by the patches"] if broken else []),
        *([f"{len(repaired)} listed tests pass with the patches"] if repaired else []),
        *([f"failed patches: {', '.join(failed)}"] if failed else []),
    ]


def is_listed(recipe: Recipe, test: str, pair: compare.Pair) -> bool:
    """Whether a difference is one that recipes.toml explains."""
    return test in recipe.differs and compare.kind(pair) == compare.BROKEN


def find_gone(recipe: Recipe, runs: Sequence[Run], listed: Iterable[str]) -> list[str]:
    """The listed tests that no longer fail, though their patch is applied."""
    without, with_ = runs
    applied = set(with_.patches("applied"))
    return [
        test
        for test, known in recipe.differs.items()
        if test not in listed
        and known.patch in applied
        and without.outcomes.get(test, "missing") not in compare.BAD
    ]


def report(
    recipe: Recipe, found: dict[str, compare.Pair], chance: dict[str, compare.Pair]
) -> list[str]:
    """Print the differences; return the tests that are broken and not listed."""
    broken = []
    for kind in (compare.BROKEN, compare.REPAIRED, compare.OTHER):
        for test, pair in found.items():
            if compare.kind(pair) != kind:
                continue
            line = f"{kind}: {test}: {pair[0]} without, {pair[1]} with"
            if is_listed(recipe, test, pair):
                known = recipe.differs[test]
                line += f" (listed: {known.patch}: {known.why})"
            elif kind == compare.BROKEN:
                broken.append(test)
            print(line)
    for test, pair in chance.items():
        print(f"flaky: {test}: {pair[0]} without, {pair[1]} with, once")
    return broken


def fetch(recipe: Recipe, one: release_sets.ReleaseSet, folder: Path) -> Path:
    """Fetch the release's source distribution, or its git tag; returns the unpacked folder."""
    if not folder.exists():
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            unpacked = Path(scratch) / "source"
            (from_git if recipe.git else from_index)(recipe, one, unpacked)
            shutil.move(unpacked, folder)
    if not (folder / recipe.tests).is_dir():
        sys.exit(f"{recipe.name}: the fetched source has no folder {recipe.tests}")
    return folder


def from_index(recipe: Recipe, one: release_sets.ReleaseSet, folder: Path) -> None:
    name, scratch = one.distribution, folder.parent
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    do(recipe, [*command, "--no-binary", name, f"{name}=={one.version}", "--dest", str(scratch)])
    (archive,) = scratch.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        file.extractall(scratch, filter="data")
    (scratch / archive.name.removesuffix(".tar.gz")).rename(folder)


def from_git(recipe: Recipe, one: release_sets.ReleaseSet, folder: Path) -> None:
    command = ["git", "clone", "--quiet", "--depth=1", "--filter=blob:none", "--no-checkout"]
    do(recipe, [*command, "--branch", f"v{one.version}", recipe.git, str(folder)])
    command = ["git", "-C", str(folder), "checkout", "--quiet", "HEAD", "--"]
    do(recipe, [*command, recipe.tests.partition("/")[0]])


def make_stand_ins(recipe: Recipe, python: Path, hub: Path) -> None:
    """Put tiny random models into the folder where the hub client caches its downloads."""
    hub.mkdir(exist_ok=True)
    for name, family in recipe.stand_ins.items():
        folder = hub / f"models--{name.replace('/', '--')}"
        if (folder / "refs").exists():
            continue
        snapshot = folder / "snapshots" / "stand-in"
        do(recipe, [str(python), "-m", "tests.hosts.model", str(snapshot), family])
        (folder / "refs").mkdir()
        (folder / "refs" / "main").write_text(snapshot.name)


def do(recipe: Recipe, command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, cwd=release_sets.ROOT)
    if done.returncode:
        sys.exit(f"{recipe.name}: {done.stderr.strip()[-500:]}")


def suite(recipe: Recipe, python: Path, source: Path, tests: list[str], patched: bool) -> Run:
    """Run tests; after a crash, run the remaining tests in a new process."""
    word = "with" if patched else "without"
    with tempfile.TemporaryDirectory(prefix="downstream-") as scratch:
        file = Path(scratch) / "outcomes"
        file.touch()
        environment = {
            **os.environ,
            **OFFLINE,
            "HOME": scratch,  # no caches of the user, and none for the next run
            "HF_HUB_CACHE": str(source.parent / "hub"),
            "MLX_PATCHES": "1" if patched else "0",
            "DOWNSTREAM_OUTCOMES": str(file),
            "DOWNSTREAM_LIFT": json.dumps(recipe.lift),
            "PATH": os.pathsep.join([str(python.parent), os.environ["PATH"]]),
            "PYTHONPATH": str(HERE / "plugin"),
            "PYTHONHASHSEED": "0",
        }
        command = [str(python.with_name("pytest")), *tests, f"--rootdir={source}"]
        command += ["-p", "downstream_outcomes", "-p", "no:cacheprovider"]
        command += ["--continue-on-collection-errors", f"--timeout={recipe.seconds}"]
        command += ["-q", "--tb=short"]
        if patched:
            command = [str(python.with_name("mlx-patches")), "run", "--", *command]
        with open(source.parent / f"{word}.log", "a") as log:
            while True:
                before = file.stat().st_size
                process = subprocess.Popen(
                    command,
                    cwd=source,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
                watch(process, file, PATIENCE * recipe.seconds)
                if process.returncode in NOT_RUN or file.stat().st_size == before:
                    sys.exit(f"{recipe.name}: {word} the patches pytest fails; see {log.name}")
                run = read(file)
                if run is not None:
                    return run


def watch(process: subprocess.Popen[bytes], file: Path, seconds: float) -> None:
    """Wait for a run; kill its process group if the file does not grow for ``seconds``."""
    size = -1
    while process.poll() is None:
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            if file.stat().st_size == size:
                break
            size = file.stat().st_size
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def read(file: Path) -> Run | None:
    """Read what the plugin wrote; None if the run did not finish."""
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    outcomes = {line["id"]: line["outcome"] for line in lines if "id" in line}
    ends = [line["statuses"] for line in lines if "statuses" in line]
    return Run(outcomes, ends[-1]) if ends else None


if __name__ == "__main__":
    main()
