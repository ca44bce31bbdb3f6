import json
import sys

import pytest

from mlx_patches import MlxPatchesError, cli
from mlx_patches.auditing import screen
from mlx_patches.auditing.audit import Audit, ModelReport
from mlx_patches.auditing.verdict import Measured, judge
from mlx_patches.core.distributions import Installed
from mlx_patches.evidence import store
from mlx_patches.evidence.words import NOT_MEASURED, REPAIRED, RIGHT
from mlx_patches.lab import Family, runner
from mlx_patches.lab import folder as measuring
from mlx_patches.lab.runner import Task

NAMES = ("left-padded", "extend", "filter")
SAY = """
import json, os, signal, sys, time
patched = sys.argv[1] == "True"
def say(name, verdict="green", detail="", figure=0.0):
    line = dict(scenario=name, verdict=verdict, detail=detail, figure=figure)
    print(json.dumps(dict(line, device="cpu", dtype="float32")), flush=True)
def rest():
    for name in ("left-padded", "extend", "filter"): say(name)
"""


@pytest.fixture
def measured(monkeypatch, tmp_path):
    installed = {"mlx-lm": Installed("mlx-lm", "0.31.3")}
    monkeypatch.setattr(runner, "environment", lambda: "mlx-lm 0.31.3")
    monkeypatch.setattr(measuring.distributions, "find", installed.get)
    monkeypatch.setattr(
        runner, "choose_families", lambda models, folder: [Family("mlx-lm", "llama")]
    )
    monkeypatch.setattr("mlx_patches.lab.scenarios.SCENARIOS", dict.fromkeys(NAMES))
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')

    def run(script, seconds=20):
        monkeypatch.setattr(measuring, "SECONDS", seconds)
        command = [sys.executable, "-c", SAY + script]
        monkeypatch.setattr(Task, "command", lambda self: [*command, str(self.patched)])
        return measuring.evidence_of(tmp_path)["mlx-lm"]

    return run


def verdict(evidence):
    return judge(Measured(evidence, evidence["note"]), "mlx-lm", "0.31.3", "llama")


def test_right_folder(measured):
    found = measured("rest()")
    assert store.pairs_of(found, "llama") == dict.fromkeys(NAMES, "gg")
    assert store.place_measured(found) == ("cpu", "float32")
    assert verdict(found).verdict == RIGHT


def test_repaired_folder(measured):
    found = measured(
        "say('left-padded', 'green' if patched else 'red', 'differs');"
        "say('extend', 'n/a'); say('filter')"
    )
    assert store.pairs_of(found, "llama") == {"left-padded": "rg", "extend": "nn", "filter": "gg"}
    assert found["details_without"] == {"llama": {"left-padded": "differs"}}
    assert verdict(found).verdict == REPAIRED


@pytest.mark.parametrize(("when", "pair"), [("not patched", "rg"), ("patched", "gr")])
def test_dying_process_is_crash(measured, when, pair):
    found = measured(f"say('left-padded')\nif {when}: os.kill(os.getpid(), signal.SIGSEGV)\nrest()")
    assert store.pairs_of(found, "llama")["process"] == pair
    cells = {cell.name: cell for cell in verdict(found).cells}
    assert cells["process"].severity == "crash"
    assert cells["process"].words == "the whole run"


def test_timeout_is_named(measured):
    script = "say('left-padded')\nif patched: time.sleep(60)\nsay('extend', 'red')\ntime.sleep(60)"
    found = measured(script, seconds=2)
    # `extend` is red without the patches and has no result with them: it is skipped.
    assert store.pairs_of(found, "llama") == {"left-padded": "gg"}
    assert found["note"] == "mlx-lm: 2 scenarios did not end within 2 s"
    assert verdict(found).verdict == RIGHT
    with pytest.raises(MlxPatchesError, match=r"no scenario of .* finished within 1 s"):
        measured("time.sleep(60)", seconds=1)


def test_unbuildable_folder_is_not_measured(measured):
    found = measured("say('build', 'not-built', 'some width was not made small', None)")
    one = verdict(found)
    assert one.verdict == NOT_MEASURED
    assert one.note == "the lab could not build it: some width was not made small"


def test_folder_code_is_run_with_its_weights(measured, tmp_path, monkeypatch):
    """The process that loads it refuses without consent, and names the variable."""
    (tmp_path / "config.json").write_text('{"model_type": "llama", "model_file": "evil.py"}')
    places, run = [], runner.run

    def record(tasks, *args, **options):
        places.extend((one.config, one.weights) for one in tasks)
        return run(tasks, *args, **options)

    monkeypatch.setattr(runner, "run", record)
    measured("rest()")
    assert places == [(None, tmp_path)] * 2


def test_unfinished_scenarios_are_named():
    note = "mlx-lm: 3 scenarios did not end within 26 s"
    found = {"set": "mlx-lm 0.31.3", "versions": {}, "note": note, "without": {"llama": {}}}
    assert verdict(found).note == note


def test_screen_shows_measurement(measured):
    one = verdict(measured("rest()"))
    model = ModelReport("llama", None, {}, True)
    report = Audit((), (), (), {}, False, model, verdicts=(one,), measured=("cpu", "float32"))
    sentence = "Measured now on a CPU in float32; not on Metal."
    assert screen.describe_places(report) == sentence
    assert report.as_dict()["measured"] == {"device": "cpu", "dtype": "float32"}
    on_metal = Audit((), (), (), {}, False, model, verdicts=(one,), measured=("metal", "bfloat16"))
    assert screen.describe_places(on_metal) == "Measured now on Metal in bfloat16."


@pytest.fixture
def run_audit(capsys):
    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            cli.main(["audit", *arguments])
        return ended.value.code, capsys.readouterr()

    return run


@pytest.fixture
def release(site):
    site.install("mlx", "0.31.2")
    site.install("mlx-lm", "0.31.3")
    for module in ("models/cache", "models/llama", "generate"):
        site.write(f"mlx_lm/{module}.py")


def test_folder_that_was_not_built_is_measured_nowhere(run_audit, measured, release, tmp_path):
    measured("say('build', 'not-built', 'its code needs consent', None)")
    code, seen = run_audit("--model", str(tmp_path), "--measure")
    assert code == 2 and "llama was not measured in mlx-lm 0.31.3" in seen.out
    assert "\nNot measured.\n" in seen.out and "Measured now" not in seen.out


def test_audit_uses_measurement(run_audit, measured, release, tmp_path):
    measured("say('left-padded', 'red', 'differs'); say('extend'); say('filter')")
    code, seen = run_audit("--model", str(tmp_path), "--measure", "--json")
    (one,) = json.loads(seen.out)["verdicts"]
    assert (code, one["verdict"], one["scenarios"], one["wrong_with_patches"]) == (1, "wrong", 3, 1)
