import errno
import io
import json
import os
import sys
import tempfile
from dataclasses import replace

import pytest
from click.testing import CliRunner

from mlx_patches import MlxPatchesError
from mlx_patches.auditing import models
from mlx_patches.cli import cli
from mlx_patches.core.distributions import Installed
from mlx_patches.lab import Family, families, record, runner
from mlx_patches.lab.kernels import kernel_folder
from mlx_patches.lab.named_scenarios import NAMED
from mlx_patches.lab.runner import Row, Task
from mlx_patches.lab.walks import runner as walks

NAMES = ("left-padded", "extend", "filter")
SAY = """
import json, os, signal, sys, time
def say(name, verdict="green", detail="", figure=0.0):
    line = dict(scenario=name, verdict=verdict, detail=detail, figure=figure)
    print(json.dumps(line), flush=True)
"""


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    monkeypatch.setattr(runner, "environment", lambda: "mlx-lm 1.0")


@pytest.fixture
def child(monkeypatch):
    def set_script(script):
        command = [sys.executable, "-c", SAY + script]
        monkeypatch.setattr(Task, "command", lambda self: [*command, str(self.patched)])

    return set_script


def task(name="llama", patched=False, scenarios=NAMES):
    return Task(Family("mlx-lm", name), patched, scenarios)


def row(family="mlx-lm:llama", patched=False, scenario="left-padded", verdict="green"):
    return Row("mlx-lm 1.0", family, patched, scenario, verdict, setup=task().setup)


def verdicts_of(rows):
    return {row.scenario: row.verdict for row in rows}


ALL = "\nfor name in ('left-padded', 'extend', 'filter'): say(name)"


def test_each_cell_is_a_row(child):
    child("say('left-padded', 'red', 'differs', 0.5); say('extend', 'n/a'); say('filter')")
    rows = runner.measure(task(patched=True))
    assert rows[0] == replace(row(patched=True, verdict="red"), detail="differs", figure=0.5)
    assert verdicts_of(rows) == {"left-padded": "red", "extend": "n/a", "filter": "green"}
    child("say('build', 'not-built', 'needs a kernel', None)")
    assert verdicts_of(runner.measure(task())) == {"build": "not-built"}
    child("print('Fetching 3 files'); print('[1]'); print('{}'); print(3)" + ALL)
    assert verdicts_of(runner.measure(task())) == dict.fromkeys(NAMES, "green")


@pytest.mark.parametrize(
    ("script", "detail"),
    [
        (
            "say('left-padded'); os.kill(os.getpid(), signal.SIGSEGV)",
            "crashed: signal 11, in extend",
        ),
        ("say('left-padded'); time.sleep(60)", "timed out after 2 s, in extend"),
        ("say('left-padded')", "ended early, in extend"),
        ("os.kill(os.getpid(), signal.SIGABRT)", "crashed: signal 6, in left-padded or before"),
        ("say('left-padded'); print('{\"scen', end='')", "ended early, in extend"),
    ],
)
def test_missing_cells_are_one_red_cell(child, script, detail):
    child(script)
    rows = runner.measure(task(), seconds=2)
    assert (rows[-1].scenario, rows[-1].verdict, rows[-1].detail) == ("process", "red", detail)
    assert len(rows) == 1 + detail.endswith("extend")


@pytest.mark.parametrize(
    ("script", "detail"),
    [
        ("say('left-padded'); raise OSError('x')", "exit code 1: OSError: x, in extend"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "crashed: signal 9, in left-padded or before"),
    ],
)
def test_process_that_was_killed_or_failed_did_not_run(child, script, detail):
    child(script)
    rows = runner.measure(task())
    assert (rows[-1].scenario, rows[-1].verdict, rows[-1].detail) == ("process", "not-run", detail)


def test_rows_have_no_values_of_variables(monkeypatch):
    before = runner.setup_here()
    monkeypatch.setenv("MLX_SERVER_API_KEY", "a secret")
    assert runner.setup_here() != before
    assert "secret" not in runner.setup_here()


@pytest.mark.parametrize("variable", ["MLX_PATCHES", "MLX_ENABLE_TF32"])
def test_child_environment(child, monkeypatch, variable):
    monkeypatch.setenv("MLX_PATCHES", "1")
    child(f"say('left-padded', detail=os.environ[{variable!r}])" + ALL)
    assert runner.measure(task())[0].detail == "0"


def test_child_arguments(tmp_path):
    command = Task(Family("mlx-vlm", "gemma4"), True, ("trim",), tmp_path).command()
    assert command[1:5] == ["-P", "-m", "mlx_patches.lab.child", "mlx-vlm:gemma4"]
    assert command[5:] == ["--patched", "--config", str(tmp_path), "--scenario", "trim"]
    command = Task(Family("mlx-lm", "llama"), False, ("trim",), dtype="bfloat16").command()
    assert command[5:] == ["--dtype", "bfloat16", "--scenario", "trim"]


def test_row_has_device(child):
    child("""
line = dict(scenario="left-padded", verdict="green", detail="", figure=0.0)
print(json.dumps({**line, "device": "metal", "dtype": "float16"}), flush=True)
os.kill(os.getpid(), signal.SIGSEGV)
""")
    rows = runner.measure(replace(task(), dtype="bfloat16"))
    # A process that died gets the device of the rows it had reported, and the requested dtype.
    assert [(r.scenario, r.device, r.dtype) for r in rows] == [
        ("left-padded", "metal", "float16"),
        ("process", "metal", "bfloat16"),
    ]


def test_rows_of_other_device_do_not_count(child, tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "device", lambda: "cpu")
    out = tmp_path / "cells.jsonl"
    for device, expected in (("cpu", "red"), ("metal", "green"), ("", "red")):
        rows = [row(scenario=name, verdict="red").as_dict() | {"device": device} for name in NAMES]
        out.write_text("".join(json.dumps(one) + "\n" for one in rows))
        child(ALL)
        assert verdicts_of(runner.run([task()], out=out)) == dict.fromkeys(NAMES, expected)


def test_second_run_adds_missing_rows(child, tmp_path):
    out = tmp_path / "cells.jsonl"
    child(ALL)
    runner.run([task()], out=out)
    child("say('left-padded', 'red'); say('extend', 'red'); say('filter', 'red')")
    rows = runner.run([task(), task("gemma3")], out=out)
    assert {r.verdict for r in rows if r.family == "mlx-lm:llama"} == {"green"}
    assert {r.verdict for r in rows if r.family == "mlx-lm:gemma3"} == {"red"}
    assert len(out.read_text().splitlines()) == 6
    child("raise SystemExit('not run again')")
    assert runner.run([task(), task("gemma3")], out=out) == rows


@pytest.mark.parametrize(
    "other",
    [{"environment": "mlx-lm 2.0"}, {"patched": True}, {"config": "x"}, {"dtype": "bfloat16"}],
)
def test_rows_of_other_run_do_not_count(child, tmp_path, other):
    out = tmp_path / "cells.jsonl"
    rows = [row(scenario=name).as_dict() | other | {"verdict": "red"} for name in NAMES]
    out.write_text("".join(json.dumps(one) + "\n" for one in rows))
    child(ALL)
    assert verdicts_of(runner.run([task()], out=out)) == dict.fromkeys(NAMES, "green")


@pytest.mark.parametrize(
    ("verdict", "detail"),
    [("not-run", "No module named 'x': install it"), ("red", "timed out after 9 s, in extend")],
)
def test_family_that_did_not_run_is_run_again(child, tmp_path, verdict, detail):
    out = tmp_path / "cells.jsonl"
    kept = {**row(scenario="process", verdict=verdict).as_dict(), "detail": detail}
    out.write_text(json.dumps(kept) + "\n")
    child(ALL)
    expected = dict.fromkeys(NAMES, "green")
    assert verdicts_of(runner.run([task()], seconds=30, out=out)) == expected
    child("raise SystemExit('not run again')")
    assert verdicts_of(runner.run([task()], seconds=30, out=out)) == expected


def replace_config(folder):
    """Replace a file, with the same size and times."""
    config, before = folder / "config.json", (folder / "config.json").stat()
    config.write_text("[]")
    os.utime(config, ns=(before.st_atime_ns, before.st_mtime_ns))


CHANGES = {
    "every patch": lambda one, site, monkeypatch: replace(one, every_patch=True),
    "device": lambda one, site, monkeypatch: replace(one, device="metal-emulated"),
    "walks": lambda one, site, monkeypatch: replace(one, walks="walks of 9 s from seed 1"),
    "version": lambda one, site, monkeypatch: monkeypatch.setattr("mlx_patches.__version__", "0"),
    "disabled": lambda one, site, monkeypatch: monkeypatch.setenv("MLX_PATCHES_DISABLE", "a"),
    "variable of MLX": lambda one, site, monkeypatch: monkeypatch.setenv(
        "MLX_DISABLE_COMPILE", "1"
    ),
    "folder": lambda one, site, monkeypatch: (one.config / "more.json").write_text("{}"),
    "file": lambda one, site, monkeypatch: replace_config(one.config),
    "code": lambda one, site, monkeypatch: site.write("mlx_lm/generate.py", "new = 1"),
    "package": lambda one, site, monkeypatch: site.install("transformers", "5.1"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("ended", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_rows_of_other_setup_do_not_count(site, child, tmp_path, monkeypatch, change, ended):
    """Also if the process ended before it reported its device."""
    site.install("mlx-lm", files={"mlx_lm/generate.py": ""})
    out, folder = tmp_path / "cells.jsonl", tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    one = replace(task(patched=True), config=folder)
    runner._hash_code.cache_clear()
    child("" if ended else ALL)
    first = runner.run([one], out=out)
    child("say('left-padded', 'n/a'); say('extend', 'n/a'); say('filter', 'n/a')")
    assert runner.run([one], out=out) == first
    changed = change(one, site, monkeypatch)
    runner._hash_code.cache_clear()
    one = changed if isinstance(changed, Task) else one
    assert {row.verdict for row in runner.run([one], out=out)} == {"n/a"}


@pytest.mark.parametrize("other", [{"seed": 1}, {"seconds": 2}])
def test_other_walks_are_not_reused(child, tmp_path, monkeypatch, other):
    out, walked = tmp_path / "cells.jsonl", []
    monkeypatch.setattr(
        walks, "walk", lambda task, *how: walked.append(how) or walks._none_yet(task)
    )
    for _ in range(2):
        walks.run([task()], seconds=1, seed=0, out=out)
    assert len(walked) == 1
    walks.run([task()], **{"seconds": 1, "seed": 0, **other}, out=out)
    assert len(walked) == 2


def test_file_of_another_running_lab_is_refused(child, tmp_path):
    out = tmp_path / "cells.jsonl"
    child(ALL)
    with runner._append(out), pytest.raises(MlxPatchesError, match="another lab writes to it"):
        runner.run([task()], out=out)


@pytest.mark.parametrize("mode", [(), ("--json",)])
def test_command_with_a_missing_package_ends_in_a_line(two_families, child, mode):
    child("say('left-padded', 'not-run', \"No module named 'x': install it\")")
    with pytest.raises(MlxPatchesError, match="left-padded did not run: No module named 'x'"):
        raise command("--model", "llama", "--scenario", "left-padded", *mode).exception


@pytest.mark.parametrize("ended", ["process", "build"])
def test_ended_family_is_not_run_again(child, tmp_path, ended):
    out = tmp_path / "cells.jsonl"
    out.write_text(json.dumps(row(scenario=ended, verdict="red").as_dict()) + "\n")
    child(ALL)
    assert verdicts_of(runner.run([task()], out=out)) == {ended: "red"}


def test_truncated_line_is_run_again(child, tmp_path):
    out = tmp_path / "cells.jsonl"
    out.write_text(json.dumps(row().as_dict()) + '\n{"environment": "mlx')
    child(ALL)
    runner.run([task()], out=out)
    assert [json.loads(line)["scenario"] for line in out.read_text().splitlines()] == [
        "left-padded",
        *NAMES,
    ]


@pytest.mark.parametrize(
    "line", ["three words here", "[]", "{}", '{"family": 1}', "7", "line\nand a half"]
)
def test_other_file_is_refused(tmp_path, line):
    out = tmp_path / "cells.jsonl"
    out.write_text(line + "\n")
    with pytest.raises(MlxPatchesError, match=r"line 1: .*--out"):
        runner.run([task()], out=out)
    assert out.read_text() == line + "\n"


def test_unwritable_file_is_one_line(tmp_path):
    with pytest.raises(MlxPatchesError, match="cannot be"):
        runner.run([task()], out=tmp_path / "no" / "such.jsonl")
    with pytest.raises(MlxPatchesError, match="cannot be"):
        runner.run([task()], out=tmp_path)


def test_full_disk_names_the_file(child, tmp_path, monkeypatch):
    """The error of a write has no name: it is not one of standard output."""

    class Full(io.StringIO):
        def write(self, text):
            raise OSError(errno.ENOSPC, "No space left on device")

    child(ALL)
    monkeypatch.setattr(runner, "_append", lambda out: Full())
    with pytest.raises(MlxPatchesError, match=r"cells: cannot be written \(No space left"):
        runner.run([task()], out=tmp_path / "cells")
    monkeypatch.setattr("mlx_patches.lab.server.command.save", Full.write)
    done = CliRunner().invoke(cli, ["lab", "--write-model", str(tmp_path / "model")])
    assert "model: cannot be written (No space left" in str(done.exception)


def test_summary_counts_worst_cells():
    rows = [
        row("a", verdict="green"),
        row("a", scenario="extend", verdict="red"),
        row("a", patched=True, verdict="green"),
        row("b", verdict="n/a"),
        row("b", scenario="extend", verdict="green"),
        row("c", scenario="build", verdict="not-built"),
        row("d", verdict="insensitive"),
        row("d", scenario="extend", verdict="n/a"),
        row("e", verdict="green"),
        row("e", scenario="extend", verdict="not-run"),
        row("f", verdict="green"),
        row("f", scenario="extend", verdict="not-emulated"),
    ]
    counts = runner.summary(rows)
    assert counts["without"] == {
        "red": 1,
        "not-run": 1,
        "not-emulated": 1,
        "not-built": 1,
        "insensitive": 1,
        "green": 1,
        "n/a": 0,
    }
    assert {name: count for name, count in counts["with"].items() if count} == {"green": 1}


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        ({False: "red"}, 1),
        ({False: "green"}, 0),
        ({False: "red", True: "green"}, 0),
        ({False: "green", True: "red"}, 1),
        ({True: "insensitive"}, 0),
        ({}, 0),
    ],
)
def test_exit_code(verdicts, code):
    assert runner.exit_code([row(patched=p, verdict=v) for p, v in verdicts.items()]) == code


@pytest.fixture
def two_families(monkeypatch):
    names = {"mlx-lm": ["llama", "gemma4"], "mlx-vlm": ["gemma4"]}
    monkeypatch.setattr(families, "families", lambda d: [Family(d, name) for name in names[d]])
    monkeypatch.setattr(runner.distributions, "find", lambda name: name)


def test_families_by_name(two_families, monkeypatch):
    assert [str(f) for f in runner.choose_families([], None)] == [
        "mlx-lm:llama",
        "mlx-lm:gemma4",
        "mlx-vlm:gemma4",
    ]
    assert [str(f) for f in runner.choose_families(["gemma4"], None)] == [
        "mlx-lm:gemma4",
        "mlx-vlm:gemma4",
    ]
    assert [str(f) for f in runner.choose_families(["mlx-lm:gemma4"], None)] == ["mlx-lm:gemma4"]
    monkeypatch.setattr(runner, "implementations", {"mistral": {"mlx-lm": "llama"}}.get)
    assert [str(f) for f in runner.choose_families(["mistral"], None)] == ["mlx-lm:llama"]
    monkeypatch.setattr(runner, "implementations", lambda name: {})
    with pytest.raises(MlxPatchesError, match=r"no family 'lama' in .*; did you mean 'llama'?"):
        runner.choose_families(["llama", "lama"], None)


def test_nothing_without_mlx(monkeypatch):
    monkeypatch.setattr(runner.distributions, "find", lambda name: None)
    with pytest.raises(MlxPatchesError, match="neither mlx-lm nor mlx-vlm"):
        runner.choose_families([], None)


def test_config_chooses_family(two_families, monkeypatch, tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "gemma4"}')
    monkeypatch.setattr(models, "implementations", lambda kind: {"mlx-vlm": kind})
    tasks = runner.tasks([], ["extend"], "both", tmp_path)
    assert [(str(t.family), t.patched, t.scenarios, t.config) for t in tasks] == [
        ("mlx-vlm:gemma4", False, ("extend",), tmp_path),
        ("mlx-vlm:gemma4", True, ("extend",), tmp_path),
    ]
    monkeypatch.setattr(models, "implementations", lambda kind: {})
    with pytest.raises(MlxPatchesError, match="no installed package implements"):
        runner.tasks([], [], "both", tmp_path)


def test_solo_scenarios_run_by_name(two_families):
    assert not NAMED.keys() & {*runner.tasks()[0].scenarios}
    named = runner.tasks(scenarios=[*NAMED])
    assert all(one.scenarios == (*NAMED,) for one in named)


def test_release_scenario_runs_once(two_families):
    tasks = runner.tasks(scenarios=["streamed"], every_patch=True)
    assert {one.family.name for one in tasks} == {"release"}
    assert [one.patched for one in tasks] == [False, True] * (len(tasks) // 2)
    assert len({one.family for one in tasks}) == len(tasks) // 2
    assert [one.every_patch for one in tasks] == [one.patched for one in tasks]
    both = runner.tasks(scenarios=["streamed", "trim"])
    assert {one.scenarios for one in both} == {("trim",), ("streamed",)}


def command(*arguments):
    return CliRunner().invoke(cli, ["lab", *arguments])


def test_command(two_families, child, tmp_path):
    child("say('left-padded', 'red' if sys.argv[-1] == 'False' else 'green', 'differs')" + ALL)
    names = [part for name in NAMES for part in ("--scenario", name)]
    done = command("--model", "llama", *names)
    assert done.exit_code == 0, done.output
    assert "mlx-lm:llama  red" in done.output
    assert "Families without the patches: 1 red\n" in done.output
    assert "Families with the patches: 1 green\n" in done.output
    done = command("--model", "llama", "--unpatched", "--json", *names)
    assert done.exit_code == 1
    content = json.loads(done.stdout)
    assert content["exit_code"] == 1
    assert content["summary"]["without"]["red"] == 1
    assert content["cells"][0]["verdict"] == "red"


@pytest.mark.parametrize(
    "arguments",
    [
        ("--jobs", "0"),
        ("--timeout", "soon"),
        ("--modle", "x"),
        ("--dtype", "float8"),
        ("--dtype", "bfloat16", "--weights", "."),
        ("--variant", "round"),
        ("--variant", "yarn", "--config", "."),
    ],
)
def test_command_usage(arguments):
    assert command(*arguments).exit_code == 2


EVIDENCE_ALL = """
for name in ('left-padded', 'extend', 'filter'):
    red = name == 'extend' and sys.argv[-1] == 'False'
    line = dict(scenario=name, verdict='red' if red else 'green', detail='differs', figure=0.0)
    print(json.dumps({**line, 'device': 'metal', 'dtype': 'bfloat16'}), flush=True)
"""


@pytest.fixture
def released(monkeypatch):
    found = {"mlx": Installed("mlx", "9.0"), "mlx-lm": Installed("mlx-lm", "1.0")}
    monkeypatch.setattr(record.distributions, "find", found.get)
    monkeypatch.setattr("mlx_patches.lab.scenarios.SCENARIOS", dict.fromkeys(NAMES))
    return found


def test_command_writes_evidence(two_families, released, child, tmp_path):
    child(EVIDENCE_ALL)
    file = tmp_path / "metal.json"
    done = command("--model", "mlx-lm:llama", "--dtype", "bfloat16", "--evidence", str(file))
    assert done.exit_code == 0, done.output
    assert f"{file}: wrote evidence of 1 families" in done.stderr
    content = json.loads(file.read_bytes())
    green = dict.fromkeys(NAMES, "g")
    assert content == {
        "set": "mlx-lm 1.0",
        "device": "metal",
        "dtype": "bfloat16",
        "mlx_patches": record.__version__,
        "versions": {"mlx": "9.0", "mlx-lm": "1.0"},
        "without": {"llama": {**green, "extend": "r"}},
        "details_without": {"llama": {"extend": "differs"}},
        "with": {"llama": green},
        "details_with": {},
    }


def test_evidence_uses_every_patch(two_families, released, monkeypatch, tmp_path):
    tasks = []
    monkeypatch.setattr(runner, "measure", lambda task, **_: tasks.append(task) or [])
    command("--model", "mlx-lm:llama", "--evidence", str(tmp_path / "cells.json"))
    assert [(task.patched, task.every_patch) for task in tasks] == [(False, False), (True, True)]


@pytest.mark.parametrize(
    "arguments",
    [
        ("--scenario", "trim"),
        ("--patched",),
        ("--config", "."),
        ("--weights", "."),
        ("--variant", "yarn"),
    ],
)
def test_evidence_needs_all_scenarios(arguments, tmp_path):
    done = command("--evidence", str(tmp_path / "cells.json"), *arguments)
    assert done.exit_code == 2
    assert "--evidence needs every scenario" in done.output


def expect_refusal(*arguments):
    done = command(*arguments)
    assert isinstance(done.exception, MlxPatchesError)
    return str(done.exception)


def test_unsuitable_evidence_does_not_run(two_families, released, child, tmp_path):
    child("raise SystemExit('it ran')")
    file = str(tmp_path / "cells.json")
    released["mlx-vlm"] = Installed("mlx-vlm", "1.0")
    assert "add --model mlx-lm or --model mlx-vlm" in expect_refusal("--evidence", file)
    own = ("--model", "mlx-lm", "--evidence")
    assert "cannot be written" in expect_refusal(*own, str(tmp_path / "no" / "cells.json"))
    released["mlx-lm"] = Installed("mlx-lm", "1.0", commit="abc")
    assert "installed from source" in expect_refusal(*own, file)
    assert not list(tmp_path.iterdir())


def test_mixed_or_empty_evidence_is_refused():
    rows = [row(), replace(row(scenario="extend"), device="metal")]
    for some in ([], [row()], [*rows, replace(row(scenario="trim"), device="cpu")]):
        with pytest.raises(MlxPatchesError, match="one package, device and dtype"):
            record.evidence(some)


def test_processes_have_own_kernel_folders(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with kernel_folder() as first, kernel_folder() as second:
        assert first != second
    with kernel_folder() as again:
        assert again == first
