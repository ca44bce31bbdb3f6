"""The functions that users call, and activation model by model."""

import json
import logging
import signal
import sys
import threading
import time
import typing
import warnings
from pathlib import Path

import pytest

import mlx_patches
from mlx_patches import MlxPatchesError, MlxPatchesWarning
from mlx_patches.activation import session as activation
from mlx_patches.activation.session import model_of
from mlx_patches.core import foreign, manager
from mlx_patches.core.outcome import Report, Status
from tests.conformance import fork_check

from .conftest import (
    CACHE,
    MODEL,
    in_threads,
    load,
    matrix_for,
    patch_of,
    registry_of,
    run_code,
    session_for,
    statuses,
    target,
)

HEAVY = "mlx mlx_lm mlx_vlm wrapt yaml packaging fastjsonschema click rich importlib.metadata ast"


def test_import_is_light():
    (found,), _ = run_code(
        f"""
        import sys
        before = list(sys.meta_path), list(sys.path_hooks), list(sys.path)
        import mlx_patches
        assert before == (sys.meta_path, sys.path_hooks, sys.path)
        print(sorted(set({HEAVY!r}.split()) & set(sys.modules)))
        """
    )
    assert found == "[]"


COSTLY = "mlx mlx_lm mlx_vlm yaml fastjsonschema packaging importlib_metadata zipp click rich"


def test_apply_is_light(tmp_path):
    (found, active), _ = run_code(
        f"""
        import sys, mlx_patches
        report = mlx_patches.apply()
        print(sorted(set({COSTLY!r}.split()) & set(sys.modules)))
        print(len(sys.meta_path))
        """
    )
    plain, _ = run_code("import sys; print(len(sys.meta_path))")
    assert found == "[]"
    assert int(active) == int(plain[0]) + 1


LANGUAGE = "from ..cache import Cache, attend\n\nclass LanguageModel:\n    pass\n"


@pytest.fixture
def releases(site):
    site.install("mlx")
    site.install(
        "mlx-lm",
        files={
            "mlx_lm/models/cache.py": CACHE,
            "mlx_lm/models/base.py": "from .cache import attend\nclass BaseModelArgs: pass\n",
            "mlx_lm/models/llama.py": MODEL,
            "mlx_lm/models/gemma4.py": MODEL,
            "mlx_lm/utils.py": "",
        },
    )
    site.install(
        "mlx-vlm",
        files={
            "mlx_vlm/models/cache.py": CACHE,
            "mlx_vlm/models/base.py": "class BaseModel: pass\n",
            "mlx_vlm/models/gemma4/__init__.py": "from .language import LanguageModel\n",
            "mlx_vlm/models/gemma4/language.py": LANGUAGE,
            "mlx_vlm/models/gemma4/vision.py": "class VisionModel: pass\n",
            "mlx_vlm/models/sound/__init__.py": "",
            "mlx_vlm/models/sound/language.py": LANGUAGE,
            "mlx_vlm/models/novel/__init__.py": "",
            "mlx_vlm/models/novel/language.py": LANGUAGE,
        },
    )
    return site


def lm(name, **more):
    return target(name, "mlx_lm.models.cache", distribution="mlx-lm", **more)


def vlm(name, **more):
    return target(name, "mlx_vlm.models.cache", distribution="mlx-vlm", **more)


METHOD = patch_of(lm("Cache.update"), vlm("Cache.update"), id="method")
FUNCTION = patch_of(lm("attend"), vlm("attend"), id="function")
ALWAYS = patch_of(lm("Cache.twice"), vlm("Cache.twice"), id="always")
OPTIONAL = patch_of(vlm("Cache.make"), id="optional", optional=True)
EVERY = (METHOD, FUNCTION, ALWAYS, OPTIONAL)
ROWS = {
    "default": {"mlx-lm": ["function"], "mlx-vlm": ["function"]},
    "gemma4": {"mlx-lm": ["method"], "mlx-vlm": ["method", "function"]},
    "sound": {"mlx-lm": [], "mlx-vlm": []},
}


@pytest.fixture
def session(releases, monkeypatch):
    made = session_for(*EVERY, always=["always"], models=ROWS)
    monkeypatch.setattr(activation, "_session", made)
    yield made
    made.restore(None)


def in_effect():
    return {(o.distribution, o.patch) for o in mlx_patches.status() if o.status == "applied"}


BATCH = ("method", "function", "always")


def of(distribution, *patches):
    return {(distribution, patch) for patch in patches}


@pytest.mark.parametrize(
    ("arguments", "imports", "expected"),
    [
        # Named patches are for every model.
        ({"patches": ["method"]}, "mlx_vlm.models.cache", of("mlx-vlm", "method")),
        ({"patches": ["function"]}, "mlx_vlm.models.sound.language", of("mlx-vlm", "function")),
        # Models activate their entries whatever is imported, and no others.
        (
            {"models": ["gemma4"]},
            "mlx_vlm.models.cache mlx_lm.models.cache",
            of("mlx-lm", *BATCH) | of("mlx-vlm", *BATCH),
        ),
        ({"models": ["sound"]}, "mlx_vlm.models.gemma4", of("mlx-vlm", "always")),
        # A model that the matrix does not know has the default entry.
        ({"models": ["newest"]}, "mlx_vlm.models.cache", of("mlx-vlm", "function", "always")),
        # Without either, the import of a model activates its entry, only for its package.
        ({}, "mlx_vlm.models.cache", of("mlx-vlm", "always")),
        ({}, "mlx_vlm.models.gemma4.language", of("mlx-vlm", *BATCH)),
        ({}, "mlx_lm.models.gemma4", of("mlx-lm", "method", "always")),
        ({}, "mlx_vlm.models.sound.language", of("mlx-vlm", "always")),
        ({}, "mlx_vlm.models.novel.language", of("mlx-vlm", "function", "always")),
        # Helper modules are no models.
        ({}, "mlx_vlm.models.base mlx_lm.models.base mlx_lm.utils", of("mlx-lm", "always")),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_effect_of_apply_and_imports(session, site, arguments, imports, expected, first):
    """Whichever of the two comes first."""
    site.write("mlx_vlm/models/newest.py", "class Model: pass")
    steps = [lambda: mlx_patches.apply(**arguments), lambda: list(map(load, imports.split()))]
    for step in steps if first else steps[::-1]:
        step()
    assert in_effect() == expected
    for distribution in dict(expected):
        cache = load(f"{distribution.replace('-', '_')}.models.cache")
        called = cache.Cache().update(1), cache.attend(1)
        wanted = {patch for name, patch in expected if name == distribution}
        assert (called[0] == ("patched", 1)) is ("method" in wanted)
        assert (called[1] == ("patched", 2)) is ("function" in wanted)


def test_apply_during_import(session, releases):
    cache = releases.root / "mlx_vlm" / "models" / "cache.py"
    cache.write_text("import mlx_patches\nmlx_patches.apply(['method'])\n" + CACHE)
    assert load("mlx_vlm.models.cache").Cache().update(1) == ("patched", 1)
    assert in_effect() == {("mlx-vlm", "method")}


def test_apply_in_package_init(session, releases):
    init = releases.root / "mlx_vlm" / "__init__.py"
    init.write_text("import mlx_patches\nmlx_patches.apply()\nfrom .models import gemma4\n")
    load("mlx_vlm")
    assert in_effect() == {("mlx-vlm", p) for p in ("method", "function", "always")}


@pytest.mark.parametrize("first", [True, False])
def test_host_model_gets_general_patches(session, releases, first):
    files = {
        "vllm_mlx/models/own.py": "from mlx_lm.models.cache import Cache\nclass Model: pass\n",
        "vllm_mlx/models/wrapper.py": "class Loaded: pass\n",
    }
    releases.install("rapid-mlx", files=files)
    if first:
        mlx_patches.apply()
    load("mlx_lm.models.cache")
    load("vllm_mlx.models.wrapper")
    assert ("mlx-lm", "function") not in in_effect()
    load("vllm_mlx.models.own")
    if not first:
        mlx_patches.apply()
    assert in_effect() == {("mlx-lm", "function"), ("mlx-lm", "always")}


@pytest.mark.parametrize("arguments", [{}, {"patches": ["method"]}, {"models": ["gemma4"]}])
def test_apply_twice(session, arguments):
    load("mlx_vlm.models.gemma4")
    first = mlx_patches.apply(**arguments)
    objects = vars(load("mlx_vlm.models.cache").Cache)["update"]
    assert isinstance(first, Report)
    assert Status.APPLIED in {outcome.status for outcome in first}
    assert mlx_patches.apply(**arguments) == first
    assert vars(load("mlx_vlm.models.cache").Cache)["update"] is objects
    assert sys.meta_path.count(session._watcher) == 1


def test_report(session):
    load("mlx_vlm.models.gemma4")
    load("mlx_lm.models.gemma4")
    report = mlx_patches.apply()
    keys = [(outcome.patch, outcome.target) for outcome in report]
    assert len(keys) == len(set(keys)) == len(report.applied) == 6
    assert report.ok
    assert "applied" in str(report)
    assert repr(report).startswith("<Report: 3 patches in effect; ok; targets: 6 applied")
    assert len(repr(report)) < 200
    fields = report.as_dict()
    assert fields["ok"] is True
    assert len(fields["outcomes"]) == sum(fields["counts"].values()) == len(report)
    json.dumps(fields)
    assert "<td>method</td>" in report._repr_html_()


def test_restore_all(session):
    before = set(sys.meta_path)
    mlx_patches.apply()
    cache = load("mlx_vlm.models.cache")
    load("mlx_vlm.models.gemma4")
    assert in_effect()
    mlx_patches.restore()
    assert in_effect() == set()
    assert cache.Cache().update(1) == 1
    assert set(sys.meta_path) == before
    load("mlx_lm.models.gemma4")
    assert in_effect() == set()
    assert not session.active


def test_restore_one(session):
    load("mlx_vlm.models.gemma4")
    mlx_patches.apply()
    assert statuses(mlx_patches.restore(["method"])) == ["disabled"]
    assert in_effect() == {("mlx-vlm", "function"), ("mlx-vlm", "always")}
    load("mlx_lm.models.cache")
    load("mlx_vlm.models.gemma4.vision")
    assert "method" not in {patch for _, patch in in_effect()}
    assert session.active


@pytest.fixture
def switched(releases, monkeypatch):
    """The process's session, with patches switched off or requested by the environment."""

    def switch(**variables):
        for name, value in variables.items():
            monkeypatch.setenv(f"MLX_PATCHES_{name}", value)
        monkeypatch.setattr(activation, "_session", session_for(*EVERY, models=ROWS))

    yield switch
    mlx_patches.restore()


def test_restored_by_choice_is_no_finding(session):
    mlx_patches.apply()
    load("mlx_vlm.models.gemma4")
    mlx_patches.restore(["method"])
    (outcome,) = mlx_patches.status().with_status("disabled")
    assert (outcome.patch, outcome.by_choice, outcome.finding) == ("method", True, False)
    report = mlx_patches.audit()
    assert not [line for line in report.findings if line.startswith("method ")]
    assert report.exit_code(strict=True) == 1


def test_restored_before_its_module_is_imported_is_disabled(session):
    mlx_patches.apply()
    assert "method" not in off_by_choice()
    mlx_patches.restore(["method"])
    assert "method" in off_by_choice()
    mlx_patches.apply(["method"])
    assert "method" not in off_by_choice()


def off_by_choice():
    return {one.patch for one in mlx_patches.audit().outcomes if one.by_choice}


def test_apply_after_restore_starts_over(session, releases):
    mlx_patches.apply()
    load("mlx_vlm.models.gemma4")
    mlx_patches.restore()
    releases.forget()
    mlx_patches.apply()
    load("mlx_vlm.models.gemma4")
    assert in_effect() == {("mlx-vlm", p) for p in ("method", "function", "always")}


def test_restore_without_apply(session):
    assert list(mlx_patches.restore()) == []
    assert list(mlx_patches.status()) == []


@pytest.mark.parametrize("call", [mlx_patches.apply, mlx_patches.restore])
def test_unknown_patch_gets_suggestion(session, call):
    with pytest.raises(MlxPatchesError, match=r"no patch 'methd'; did you mean 'method'\?"):
        call(["methd"])
    with pytest.raises(MlxPatchesError, match="no patch 'zzz' "):
        call(["zzz"])
    assert list(mlx_patches.status()) == []
    assert not session.active


def test_unknown_patch_in_row(releases, monkeypatch):
    matrix = matrix_for(*EVERY, models={**ROWS, "odd": {"mlx-vlm": ["nobody"]}})
    made = activation.Session(registry_of(*EVERY), matrix)
    monkeypatch.setattr(activation, "_session", made)
    with pytest.raises(MlxPatchesError, match="no patch 'nobody'"):
        mlx_patches.apply(models=["odd"])


def test_missing_patch_is_warning(session):
    cache = load("mlx_vlm.models.cache")
    cache.attend = lambda x: x
    message = r"patches not in effect: function \(conflict: .*attend"
    with pytest.warns(MlxPatchesWarning, match=message) as seen:
        mlx_patches.apply(["function"])
    assert seen[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mlx_patches.apply(["function"], dry_run=True)
        mlx_patches.apply(["method"])


@pytest.mark.parametrize("name", ["of-tomorrow", "toy_modl", ""])
def test_unknown_model(session, name):
    with pytest.raises(MlxPatchesError, match=f"no model type '{name}' in the matrix or"):
        mlx_patches.apply(models=[name])
    assert in_effect() == set()


@pytest.mark.parametrize("argument", ["patches", "models"])
def test_string_instead_of_list(session, argument):
    with pytest.raises(MlxPatchesError, match=r"must be a list of .*: write \['method'\]"):
        mlx_patches.apply(**{argument: "method"})


def test_models_and_patches_intersect(session):
    report = mlx_patches.apply(patches=["method", "function", "always"], models=["default"])
    assert {outcome.patch for outcome in report} == {"function", "always"}


def test_optional_patch_by_name(session):
    mlx_patches.apply()
    load("mlx_vlm.models.gemma4")
    assert "optional" not in {patch for _, patch in in_effect()}
    mlx_patches.apply(["optional"])
    assert ("mlx-vlm", "optional") in in_effect()


@pytest.mark.parametrize("arguments", [{}, {"patches": ["method"]}, {"models": ["gemma4"]}])
def test_dry_run_changes_nothing(session, arguments):
    load("mlx_vlm.models.gemma4")
    cache = load("mlx_vlm.models.cache")
    before = dict(vars(cache)), dict(vars(cache.Cache)), list(sys.meta_path)
    report = mlx_patches.apply(**arguments, dry_run=True)
    assert (dict(vars(cache)), dict(vars(cache.Cache)), list(sys.meta_path)) == before
    assert list(mlx_patches.status()) == []
    load("mlx_lm.models.gemma4")
    assert list(mlx_patches.status()) == []
    assert {outcome.status for outcome in report} == {Status.PENDING}


@pytest.mark.parametrize("arguments", [{}, {"patches": ["method"]}, {"models": ["gemma4"]}])
def test_dry_run_reports_effect_of_apply(session, arguments):
    load("mlx_vlm.models.gemma4")
    would = mlx_patches.apply(**arguments, dry_run=True)
    does = mlx_patches.apply(**arguments)
    assert [(o.patch, o.target) for o in would] == [(o.patch, o.target) for o in does]
    promised = {o.target for o in would if o.reason.startswith("would be applied")}
    assert promised == {o.target for o in does if o.status is Status.APPLIED} != set()


@pytest.mark.parametrize("value", ["method", "method,always", " always method ", "all"])
@pytest.mark.parametrize("dry_run", [False, True])
def test_disable(switched, value, dry_run):
    switched(DISABLE=value)
    load("mlx_vlm.models.cache")
    report = mlx_patches.apply(["method", "function"], dry_run=dry_run)
    off = {"method", "function"} if value == "all" else {"method"}
    disabled = [outcome for outcome in report if outcome.status is Status.DISABLED]
    assert {outcome.patch for outcome in disabled} == off
    assert all(outcome.by_choice and not outcome.finding for outcome in disabled)
    assert "MLX_PATCHES_DISABLE" in disabled[0].reason
    assert "method" not in {patch for _, patch in in_effect()}


@pytest.mark.parametrize("off", ["", "optional"])
@pytest.mark.parametrize("value", ["optional", "no-such-patch, optional"])
def test_enable_optional_patches(switched, caplog, value, off):
    switched(ENABLE=value, DISABLE=off)
    mlx_patches.apply()
    load("mlx_vlm.models.cache")
    assert (("mlx-vlm", "optional") in in_effect()) is (not off)
    assert ("no-such-patch" in caplog.text) == (value != "optional")


@pytest.mark.parametrize(
    ("module", "row"),
    [
        ("mlx_lm.models.llama", ("mlx-lm", "llama")),
        ("mlx_vlm.models.gemma4", ("mlx-vlm", "gemma4")),
        ("mlx_vlm.models.gemma4.vision", ("mlx-vlm", "gemma4")),
        ("mlx_lm.models.base", None),
        ("mlx_lm.models.cache", None),
        ("mlx_lm.models", None),
        ("mlx_lm.utils", None),
        ("mlx_lm", None),
        ("other.models.llama", None),
    ],
)
def test_model_of(releases, module, row):
    if not module.startswith("other"):
        load(module)
    assert model_of(module) == row


def test_unloadable_patch_does_not_break_import(releases, monkeypatch, caplog):
    matrix = matrix_for(*EVERY, models={**ROWS, "gemma4": {"mlx-lm": ["nobody"]}})
    made = activation.Session(registry_of(*EVERY), matrix)
    monkeypatch.setattr(activation, "_session", made)
    mlx_patches.apply()
    assert load("mlx_lm.models.gemma4").Model()(1) == 2
    assert "no patch 'nobody'" in caplog.text
    mlx_patches.restore()


@pytest.mark.parametrize("content", ['{"format": 99}', "{", "", None])
def test_auto_with_broken_matrix(tmp_path, content):
    matrix = tmp_path / "broken.json"
    if content is not None:
        matrix.write_text(content)
    lines, errors = run_code(
        f"""
        import pathlib
        import mlx_patches.matrix.matrix
        mlx_patches.matrix.matrix.COMPILED = pathlib.Path({str(matrix)!r})
        import mlx_patches.auto
        print("alive")
        """
    )
    assert lines == ["alive"]
    assert "mlx_patches is not active" in errors
    assert "broken.json" in errors
    assert "reinstall mlx-patches" in errors


def test_apply_with_broken_matrix(site, tmp_path, monkeypatch):
    monkeypatch.setattr(mlx_patches.matrix.matrix, "COMPILED", tmp_path / "none.json")
    with pytest.raises(MlxPatchesError, match=r"none\.json: .*: reinstall mlx-patches"):
        mlx_patches.apply()


def test_threads_share_one_session(site, monkeypatch):
    def slow():
        time.sleep(0.02)
        return matrix_for()

    monkeypatch.setattr(activation.CompatMatrix, "builtin", slow)
    barrier, found = threading.Barrier(8), []

    def ask():
        barrier.wait(10)
        found.append(activation.session())

    in_threads([ask] * 8)
    assert len(found) == 8
    assert len(set(map(id, found))) == 1


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_forked_child_ignores_held_lock(session, monkeypatch):
    monkeypatch.setattr(manager, "FORK_SECONDS", 0.1)
    held, done = threading.Event(), threading.Event()

    def holder():
        with session.manager.lock:
            held.set()
            done.wait(20)

    def child():
        signal.alarm(10)
        assert statuses(mlx_patches.apply(["method"])) == ["pending", "pending"]

    thread = threading.Thread(target=holder)
    thread.start()
    assert held.wait(10)
    status = fork_check(child)
    done.set()
    thread.join(10)
    assert status == 0


@pytest.mark.parametrize("on", (True, False))
@pytest.mark.parametrize("frozen", (True, False))
@pytest.mark.parametrize("call", ("apply()", "apply(['no-such-patch'])"))
def test_garbage_collector_is_unchanged(on, frozen, call):
    code = f"""
import gc, mlx_patches
gc.{"enable" if on else "disable"}()
{"gc.freeze()" if frozen else ""}
try:
    mlx_patches.{call}
except mlx_patches.MlxPatchesError:
    pass
print(gc.isenabled(), gc.get_freeze_count() > 0)
"""
    assert run_code(code)[0] == [f"{on} {frozen}"]


def test_annotations_resolve():
    for function in (mlx_patches.apply, mlx_patches.restore, mlx_patches.status, mlx_patches.needs):
        assert "return" in typing.get_type_hints(function)
    for name in mlx_patches.__all__:
        assert getattr(mlx_patches, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        mlx_patches.nothing  # noqa: B018


def test_failed_strict_apply_leaves_nothing(session, releases):
    cache = load("mlx_vlm.models.cache")
    before = dict(vars(cache.Cache)), cache.attend

    def broken(original):
        raise ValueError("on purpose")

    late = patch_of(vlm("attend", factory=broken), id="zzz")
    session.registry.add(late)
    session.matrix._document["patches"]["zzz"] = {"mlx-vlm": {"affected": ">=0"}}
    with pytest.raises(MlxPatchesError, match="zzz is not in effect"):
        mlx_patches.apply(["method", "zzz"], strict=True)
    assert (dict(vars(cache.Cache)), cache.attend) == before
    assert not session.active
    load("mlx_lm.models.gemma4")
    assert in_effect() == set()


def test_one_log_line(session, caplog):
    with caplog.at_level(logging.INFO, "mlx_patches"):
        mlx_patches.apply()
        assert caplog.records == []
        load("mlx_vlm.models.cache")
        load("mlx_vlm.models.gemma4")
    (record,) = caplog.records
    assert record.levelno == logging.INFO
    version = mlx_patches.__version__
    assert f"mlx_patches {version}: 1 patches in effect for mlx-vlm" in record.getMessage()


def test_needs(session):
    found = {need.patch: need for need in mlx_patches.needs("gemma4")}
    assert set(found) == {"always", "method", "function"}
    assert found["method"].effect == "goes wrong"
    assert found["method"].as_dict()["distribution"] in ("mlx-lm", "mlx-vlm")
    with pytest.raises(MlxPatchesError, match=r"no model type 'gema4' in .*'gemma4'"):
        mlx_patches.needs("gema4")


@pytest.mark.parametrize("kind", [Path, str])
def test_needs_of_a_folder(session, tmp_path, kind):
    (tmp_path / "config.json").write_text('{"model_type": "gemma4"}')
    assert mlx_patches.needs(kind(tmp_path)) == mlx_patches.needs("gemma4")
    assert mlx_patches.audit(kind(tmp_path)).model.model_type == "gemma4"


@pytest.mark.parametrize("value", [None, 5, b"gemma4", ["gemma4"], {}, object()])
def test_name_of_another_type(session, value):
    with pytest.raises(MlxPatchesError, match=r"^model must be a string or a Path, not .*folder$"):
        mlx_patches.needs(value)
    if value is not None:
        with pytest.raises(MlxPatchesError, match=r"^model must be a string or a Path"):
            mlx_patches.audit(value)
        with pytest.raises(MlxPatchesError, match=r"^host must be the name of a distribution, not"):
            mlx_patches.audit(host=value)


def test_status_scans_no_heap(session, monkeypatch):
    mlx_patches.apply()
    load("mlx_vlm.models.gemma4")
    monkeypatch.setattr(foreign.gc, "get_referrers", lambda *objects: pytest.fail("a heap scan"))
    assert in_effect()
