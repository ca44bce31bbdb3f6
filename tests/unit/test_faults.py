"""Interrupts, threads, odd imports, forks, full disks and hostile files."""

import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

import pytest

import mlx_patches
from mlx_patches.activation import session as activation
from mlx_patches.core.outcome import Status
from tests.conformance import fork_check

from .conftest import (
    CACHE,
    MODEL,
    load,
    manager_for,
    mark_result,
    patch_of,
    run_command,
    session_for,
    statuses,
    target,
)

ROOT = Path(__file__).parents[2]
OURS = {
    str(ROOT / "mlx_patches" / "core" / f"{name}.py")
    for name in ("manager", "site", "guard", "patch")
}


EVERYWHERE = (
    "Cache.update",
    "attend",
    "Cache.state",
    "Cache.make",
    target(
        "Cache.extra",
        factory=lambda _: mark_result,
        defines_new_attribute=True,
        fingerprint_of=("Cache.update",),
    ),
    target("Other.update"),
)


class Tracer:
    """Traces the lines of mlx_patches; raises KeyboardInterrupt at the moment ``at``, if given.

    A moment is a line of code and how often it has run before; loops are traced for two rounds.
    """

    def __init__(self, at=None):
        self.at, self.passed, self.moments = at, Counter(), []

    def __call__(self, frame, event, argument):
        if frame.f_code.co_filename not in OURS:
            return None
        if event == "line":
            line = frame.f_code, frame.f_lineno
            moment = *line, self.passed[line]
            self.passed[line] += 1
            if moment == self.at:
                raise KeyboardInterrupt
            if moment[2] < 2:
                self.moments.append(moment)
        return self

    def follow(self, call, *args):
        """Make a call under the trace; returns whether it was interrupted."""
        before = sys.gettrace()
        sys.settrace(self)
        try:
            call(*args)
            return False
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(before)


def objects(cache, model):
    found = {name: vars(cache.Cache).get(name) for name in ("update", "state", "make", "extra")}
    found["Other"] = vars(cache.Other)["update"]
    return found | {"attend": cache.attend, "alias": model.attend}


def list_changed(now, then):
    return {name for name in then if now[name] is not then[name]}


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow), 11])
def test_interrupted_apply_is_all_or_nothing(fake, every):
    cache, model = load("fake_lm.cache"), load("fake_lm.model")
    originals, patch, seen = objects(cache, model), patch_of(*EVERYWHERE), Counter()
    moments = Tracer()
    manager = manager_for(patch)
    moments.follow(manager.apply, patch)
    manager.restore()
    for moment in list(moments.moments)[::every]:
        manager = manager_for(patch)
        assert Tracer(moment).follow(manager.apply, patch)
        live = list_changed(objects(cache, model), originals)
        assert live in (set(), set(originals)), (moment, live)
        seen[bool(live)] += 1
        if not live:
            assert "applied" not in statuses(manager.status())
        assert set(statuses(manager.apply(patch))) == {"applied"}, moment
        assert set(statuses(manager.status())) == {"applied"}
        manager.restore()
        assert list_changed(objects(cache, model), originals) == set(), moment
    assert seen[False] > 100 // every, seen


@pytest.mark.slow
def test_interrupted_restore_can_be_finished(fake):
    cache, model = load("fake_lm.cache"), load("fake_lm.model")
    originals, patch = objects(cache, model), patch_of(*EVERYWHERE)
    moments = Tracer()
    manager = manager_for(patch)
    manager.apply(patch)
    moments.follow(manager.restore)
    assert len(moments.moments) > 30
    for moment in moments.moments:
        manager = manager_for(patch)
        manager.apply(patch)
        assert Tracer(moment).follow(manager.restore)
        live = list_changed(objects(cache, model), originals)
        found = {o.target for o in manager.status() if o.status is Status.APPLIED}
        assert len(found) <= len(live), (moment, live, found)
        manager.restore()
        assert list_changed(objects(cache, model), originals) == set(), moment


def test_threads_import_while_patches_change(site):
    names = [f"model_{index}" for index in range(50)]
    files = {"mlx_lm/models/cache.py": CACHE}
    for index, name in enumerate(names):
        before = f"from . import {names[index - 1]}\n" if index % 7 else ""
        files[f"mlx_lm/models/{name}.py"] = before + MODEL
    site.install("mlx-lm", files=files)
    method = patch_of(
        target("Cache.update", "mlx_lm.models.cache", distribution="mlx-lm"), id="method"
    )
    function = patch_of(
        target("attend", "mlx_lm.models.cache", distribution="mlx-lm"),
        *(target("Model.__call__", f"mlx_lm.models.{n}", distribution="mlx-lm") for n in names),
        id="function",
    )
    rows = {"default": {"mlx-lm": ["function"]}, "model_3": {"mlx-lm": ["method", "function"]}}
    session = session_for(method, function, models=rows)
    barrier, stop = threading.Barrier(17), threading.Event()
    errors, found = [], []

    def importer(number):
        try:
            barrier.wait(20)
            for index in range(50):
                model = load(f"mlx_lm.models.{names[(index * (2 * number + 1)) % 50]}")
                found.append(model.Model()(1))
        except BaseException as error:
            errors.append(error)

    def toggler():
        try:
            barrier.wait(20)
            while not stop.is_set():
                session.apply(None, None, strict=False, dry_run=False)
                session.restore(None)
                assert "applied" not in statuses(session.status())
        except BaseException as error:
            errors.append(error)

    importers = [threading.Thread(target=importer, args=(number,)) for number in range(16)]
    other = threading.Thread(target=toggler)
    for thread in (*importers, other):
        thread.start()
    for thread in importers:
        thread.join(60)
    stop.set()
    other.join(60)
    assert not any(thread.is_alive() for thread in (*importers, other))
    assert errors == []
    assert len(found) == 800
    plain, once, twice = 2, ("patched", 2), ("patched", ("patched", 2))
    assert set(found) <= {plain, once, twice}
    models = [load(f"mlx_lm.models.{name}") for name in names]
    session.restore(None)
    assert {model.Model()(1) for model in models} == {plain}
    session.apply(None, None, strict=False, dry_run=False)
    assert set(statuses(session.status())) == {"applied"}
    assert {model.Model()(1) for model in models} == {twice}
    session.restore(None)
    assert {model.Model()(1) for model in models} == {plain}
    assert len({model.attend for model in models}) == 1


@pytest.fixture
def session(fake, monkeypatch):
    made = session_for(patch_of("Cache.update", "attend"), always=["fix"])
    monkeypatch.setattr(activation, "_session", made)
    mlx_patches.apply(["fix"])
    yield made
    made.restore(None)


def test_reloaded_target_is_patched(session, fake):
    cache, model = load("fake_lm.cache"), load("fake_lm.model")
    for _ in range(3):
        importlib.reload(cache)
        assert cache.attend(1) == ("patched", 2)
        assert cache.Cache().update(1) == ("patched", 1)
        assert set(statuses(mlx_patches.status())) == {"applied"}
    importlib.reload(model)
    assert model.Model()(1) == ("patched", 2)
    mlx_patches.restore()
    assert (cache.attend(1), model.Model()(1), cache.Cache().update(1)) == (2, 2, 1)


def test_circular_imports(session, fake):
    fake.write("fake_lm/cache.py", "from . import user\n" + CACHE + "\nfrom . import user\n")
    fake.write(
        "fake_lm/user.py",
        """
        from . import cache
        early = hasattr(cache, "attend")

        def use(x):
            from .cache import attend
            return attend(x)
        """,
    )
    user = load("fake_lm.user") if "fake_lm.cache" in sys.modules else load("fake_lm.cache").user
    assert not user.early
    assert user.use(1) == ("patched", 2)
    assert set(statuses(mlx_patches.status())) == {"applied"}


def test_failed_import_is_retried(session, fake):
    fake.write("fake_lm/cache.py", CACHE + "\nimport nowhere_at_all\n")
    for _ in range(2):
        with pytest.raises(ModuleNotFoundError, match="nowhere_at_all"):
            load("fake_lm.cache")
        assert set(statuses(mlx_patches.status())) == {"pending"}
    fake.write("fake_lm/cache.py", CACHE)
    assert load("fake_lm.cache").attend(1) == ("patched", 2)


def test_odd_objects_in_sys_modules(session, monkeypatch):
    """Lazy loaders and test doubles put objects that are no modules into ``sys.modules``."""
    for odd in (None, object(), type("Lazy", (), {"__getattr__": lambda *_: 1 / 0})()):
        monkeypatch.setitem(sys.modules, "fake_lm.odd", odd)
        mlx_patches.apply()
        assert "failed" not in statuses(mlx_patches.status())
    monkeypatch.delitem(sys.modules, "fake_lm.odd")


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_fork_during_apply(session):
    cache = load("fake_lm.cache")
    stop = threading.Event()

    def toggle():
        while not stop.is_set():
            mlx_patches.apply(["fix"])
            mlx_patches.restore()

    def child():
        signal.alarm(20)
        mlx_patches.apply(["fix"])
        assert cache.attend(1) == ("patched", 2)
        mlx_patches.restore()
        assert cache.attend(1) == 2

    thread = threading.Thread(target=toggle)
    thread.start()
    began = time.monotonic()
    try:
        results = [fork_check(child) for _ in range(20)]
        took = time.monotonic() - began
    finally:
        stop.set()
        thread.join(20)
    assert results == [0] * 20
    # A lock of a thread that is not in the child would cost it a second at each use.
    assert took < 15


WORKERS = """
import multiprocessing, sys

def work(queue):
    import mlx_lm.models.cache as cache
    import mlx_patches
    queue.put((cache.attend(1), sorted({str(o.status) for o in mlx_patches.status()
                                        if o.patch == "their-patch"})))

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    if sys.argv[1] == "fork":
        import mlx_lm.models.cache
    queue = context.Queue()
    workers = [context.Process(target=work, args=(queue,)) for _ in range(2)]
    for worker in workers:
        worker.start()
    print([queue.get(timeout=60) for _ in workers])
    for worker in workers:
        worker.join(60)
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_of_enabled_host(site, tmp_path, method):
    from mlx_patches.activation import run

    from .test_environment import PATCHES

    site.install("mlx-lm", "0.31.3", {"mlx_lm/models/cache.py": "def attend(x): return x + 1\n"})
    site.write("their_patches.py", PATCHES)
    info = site.install("their-package")
    (info / "entry_points.txt").write_text("[mlx_patches.patches]\none = their_patches:ONE\n")
    script = tmp_path / "host.py"
    script.write_text(WORKERS)
    launch = run.launch([sys.executable, str(script), method])
    paths = [launch.variables["PYTHONPATH"], str(site.root)]
    variables = {**launch.variables, "PYTHONPATH": os.pathsep.join(paths)}
    done = run_command(launch.command, **variables)
    assert done.stdout == f"{[(('patched', 2), ['applied'])] * 2}\n", done.stderr


def test_nothing_is_written(site, tmp_path):
    """Read-only site-packages: applying, auditing and restoring open no file for writing."""
    site.install("mlx-lm", "0.31.3", {"mlx_lm/models/cache.py": CACHE})
    code = """
        import os, sys
        def watch(event, arguments):
            if event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                print("written:", arguments[0])
            if event in {"os.mkdir", "os.rename", "os.remove", "os.truncate"}:
                print("changed:", event, arguments[0])
        sys.addaudithook(watch)
        import mlx_patches
        mlx_patches.apply()
        import mlx_lm.models.cache
        mlx_patches.audit()
        mlx_patches.restore()
        print("done")
        """
    paths = os.pathsep.join((str(ROOT), str(site.root)))
    done = run_command([sys.executable, "-B", "-c", dedent(code)], PYTHONPATH=paths)
    assert done.stdout == "done\n", done.stderr


# The limits for refusing a file on a loaded machine.
SECONDS = 60
MEGABYTES = 400
# Forks for each file, since the imports take longer.
READER = """
import json, os, resource, signal, sys, traceback
from pathlib import Path
from mlx_patches import MlxPatchesError
from mlx_patches.auditing.models import read_folder

def refuse(path):
    signal.alarm(3 * SECONDS)
    now = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + MEGABYTES * 2**20,) * 2)
    try:
        read_folder(Path(path).parent)
    except MlxPatchesError as error:
        print(len(str(error)) < 1000 and str(error).isprintable(), error, flush=True)

for line in sys.stdin:
    child = os.fork()
    if child == 0:
        path, output = json.loads(line)
        for stream in (1, 2):
            os.dup2(os.open(output, os.O_CREAT | os.O_APPEND | os.O_WRONLY), stream)
        status = 1
        try:
            refuse(path)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def place(path: Path, content: bytes | str | int) -> None:
    """Put bytes, a number of zeros, a fifo, a folder, or a link to another path at ``path``."""
    if isinstance(content, int):
        with open(path, "wb") as file:
            file.truncate(content)
    elif content == "fifo":
        os.mkfifo(path)
    elif content == "folder":
        path.mkdir()
    elif isinstance(content, str):
        path.symlink_to(content)
    else:
        path.write_bytes(content)


@pytest.fixture(scope="module")
def reader() -> Iterator[subprocess.Popen[str]]:
    code = READER.replace("MEGABYTES", str(MEGABYTES)).replace("SECONDS", str(SECONDS))
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield process
        process.stdin.close()
        assert process.wait(SECONDS) == 0


@pytest.fixture
def read_refusal(reader, tmp_path) -> Callable[[Path], str]:
    def read(path: Path) -> str:
        began, output = time.perf_counter(), tmp_path / "output"
        print(json.dumps([str(path), str(output)]), file=reader.stdin, flush=True)
        status = reader.stdout.readline()
        assert time.perf_counter() - began < SECONDS
        message = output.read_text()
        assert status == "0\n", message
        assert message.startswith("True "), message[:1000]
        return message

    return read


CONFIGS = {
    "100 MB": 100_000_000,
    "1 GB": 1_000_000_000,
    "a device": "/dev/zero",
    "a pipe": "fifo",
    "a folder": "folder",
    "deep": b"[" * 5_000_000,
    "deep objects": b'{"a":' * 1_000_000,
    "a number of a million digits": b'{"model_type": ' + b"9" * 1_000_000 + b"}",
}


@pytest.mark.skipif(sys.platform != "linux", reason="limits memory as Linux counts it")
@pytest.mark.parametrize("kind", CONFIGS)
def test_hostile_config_is_refused_cheaply(tmp_path, read_refusal, kind):
    place(tmp_path / "config.json", CONFIGS[kind])
    assert "config.json: " in read_refusal(tmp_path / "config.json")


@pytest.mark.parametrize(
    "model_type",
    ["../../etc/passwd", "os", "a.b", "__init__", "x" * 100_000, "\x1b[2J", "\ud800", "gemma4\x00"],
)
def test_model_type_is_only_a_name(fake, tmp_path, model_type, capsys):
    """It is looked up, never imported or opened, and reaches a terminal only escaped."""
    from mlx_patches import cli

    fake.install("mlx-lm", "0.31.3", {"mlx_lm/models/llama.py": "raise SystemExit(9)\n"})
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    with pytest.raises(SystemExit) as ended:
        cli.main(["audit", "--model", str(tmp_path)])
    output = capsys.readouterr()
    assert ended.value.code == 2, output
    assert "Traceback" not in output.err
    assert len(output.err) < 1000
    assert output.err.rstrip("\n").isprintable()


@pytest.mark.slow
def test_restore_during_decision(fake):
    load("fake_lm.cache")
    patches = [patch_of("attend", id=f"fix-{number}") for number in range(3000)]
    manager = manager_for(*patches, rule={"affected": "<1", "fixed": ">=1"})
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    decider = threading.Thread(target=lambda: [manager.apply(p, dry_run=True) for p in patches])
    try:
        decider.start()
        while decider.is_alive():
            manager.restore(["fix-0"])
    finally:
        decider.join()
        sys.setswitchinterval(interval)
