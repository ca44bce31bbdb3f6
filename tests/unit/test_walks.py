"""Walks without MLX: their text, how they get smaller, and processes that print, crash or hang."""

import sys
from dataclasses import replace

import pytest
from click.testing import CliRunner

from mlx_patches import MlxPatchesError
from mlx_patches.cli import cli
from mlx_patches.lab import Family
from mlx_patches.lab import runner as lab_runner
from mlx_patches.lab.runner import Task
from mlx_patches.lab.walks import runner
from mlx_patches.lab.walks.program import OPTIONS, VERBS, draw, parse
from mlx_patches.lab.walks.runner import Red, Walked
from mlx_patches.lab.walks.shrink import shrink
from mlx_patches.lab.walks.walk import reason

KINDS = [
    frozenset({"renew", "solo", "engines", "drop", "segment", "copy", "keep", *more})
    for more in (
        {"reuse", "save", "quantize", "processor", "sampler"},
        {"max_kv_size"},
        {"kv_bits", "prefix", "images"},
    )
]
LINE = "mlx-lm:llama prefill_step_size=8; add row=1 length=20 tokens=6; step count=3; drop row=1"


def draw_all(count=200):
    return [draw("mlx-lm:llama", seed, KINDS, 8) for seed in range(count)]


def test_programs_are_reproducible():
    for program in draw_all():
        assert parse(str(program)) == program
        assert "\n" not in str(program) and "'" not in str(program)
    assert draw_all(20) == draw_all(20)
    assert len(set(map(str, draw_all(20)))) == 20


def test_every_setting_is_drawn():
    programs = draw_all()
    seen = {
        (one.verb, name)
        for program in programs
        for one in program.operations
        for name in one.settings
    }
    known = {(verb, name.rstrip("!")) for verb, names in VERBS.items() for name in names.split()}
    assert seen == known
    assert {name for program in programs for name in program.options} == OPTIONS


def test_only_supported_operations_are_drawn():
    for seed in range(60):
        program = draw("mlx-lm:llama", seed, [frozenset()], 8)
        assert {one.verb for one in program.operations} <= {"add", "step"}
        names = {name for one in program.operations for name in one.settings}
        assert names <= {"row", "text", "length", "tokens", "count"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "'': it starts with no family such as mlx-lm:llama"),
        ("mlx-lm:llama", "'mlx-lm:llama': it has no operation"),
        ("llama; step count=1", "'llama': it starts with no family"),
        ("mlx-lm:llama; stp count=1", "'stp': no operation; there are: add, step"),
        ("mlx-lm:llama; step", "'step': it needs count, 1 or more"),
        ("mlx-lm:llama; step count=0", "it needs count, 1 or more"),
        ("mlx-lm:llama; step count=many", "'count=many': not a whole number from 0 to 4096"),
        ("mlx-lm:llama; step count=-1", "'count=-1': not a whole number"),
        ("mlx-lm:llama; add row=1 length=4097 tokens=1", "'length=4097': not a whole number"),
        ("mlx-lm:llama; add row=1 length=٣ tokens=1", "not a whole number"),
        (
            "mlx-lm:llama; drop row=1 tokens=1",
            "'tokens=1': no setting of drop; there are: keep, row",
        ),
        ("mlx-lm:llama step=2; drop row=1", "'step=2': no setting of mlx-lm:llama"),
        ("mlx-lm:llama; \x1b[31m", "'\\x1b[31m': no operation"),
    ],
)
def test_invalid_line_is_refused(line, message):
    with pytest.raises(MlxPatchesError, match="not a walk that can be replayed: ") as error:
        parse(line)
    assert message in str(error.value)
    assert "\x1b" not in str(error.value)


def test_red_walk_is_shrunk():
    def is_red(program):
        """A drop of a row of three or more tokens, with small chunks."""
        tokens = {one["row"]: one["tokens"] for one in program.operations if one.verb == "add"}
        drops = [one["row"] for one in program.operations if one.verb == "drop"]
        small = program.options.get("prefill_step_size", 2048) < 9
        return small and any(tokens.get(row, 0) >= 3 for row in drops)

    large = next(one for one in draw_all() if is_red(one) and len(one.operations) > 12)
    small = shrink(large, is_red, 60)
    assert is_red(small)
    assert [one.verb for one in small.operations] == ["add", "drop"]
    assert small.operations[0].settings.items() >= {"length": 1, "tokens": 3}.items()
    assert set(small.operations[0].settings) <= {"row", "text", "length", "tokens"}
    assert list(small.options) == ["prefill_step_size"]


def test_reasons_ignore_numbers():
    near, far = (f"row {n}, step {n}: log-probabilities differ by {n}e-05" for n in (1, 23))
    assert reason(near) == reason(far) == reason("row 4, step 0: token 7 instead of 9")
    assert reason(near) != reason("row 1, step 1: log-probabilities differ by nan")
    assert reason(near) != reason(f"{near}; a solo run in the engine's chunks does too")
    first, second = (f"ValueError: ({n},) is no shape (mlx_lm/cache.py:12)" for n in (3, 4))
    assert reason(first) == reason(second) == "ValueError (mlx_lm/cache.py:12)"
    assert reason(first) != reason("ValueError: no (mlx_lm/cache.py:13)")


SAY = """
import json, os, signal, sys, time
arguments = sys.argv[1:]
seed = int(arguments[arguments.index("--seed") + 1]) if "--seed" in arguments else 0
def say(**event): print(json.dumps(event), flush=True)
def walk(number, **event):
    say(walk=number, line=f"mlx-lm:llama; step count={number + 1}")
    say(**event)
"""


@pytest.fixture
def walked(monkeypatch):
    monkeypatch.setattr(lab_runner, "environment", lambda: "mlx-lm 1.0")

    def run(script, seconds=60.0, seed=0, patience=60.0):
        monkeypatch.setattr(
            runner, "command", lambda task, *more: [sys.executable, "-c", SAY + script, *more]
        )
        return runner.walk(Task(Family("mlx-lm", "llama"), True, ()), seconds, seed, patience)

    return run


def test_right_walks_are_green(walked):
    found = walked(
        "say(device='cpu'); walk(0, failure='', sequences=3); walk(1, refused='x'); say(over=True)"
    )
    assert (found.walks, found.refused, found.reds) == (2, 1, [])
    row = found.row()
    assert (row.scenario, row.verdict, row.detail, row.device) == (
        "walks",
        "green",
        "1 walks, 3 sequences",
        "cpu",
    )


def test_red_walks_are_grouped_by_reason(walked):
    found = walked(
        "walk(0, failure='row 1, step 2: token 3 instead of 4')\n"
        "say(small='mlx-lm:llama; step count=9', failure='row 1, step 0: token 5 instead of 6')\n"
        "walk(1, failure='row 9, step 2: token 3 instead of 5')\n"
        "walk(2, failure='TypeError: x (a.py:1)')\n"
        "say(over=True)"
    )
    assert found.reds == [
        Red("row 1, step 0: token 5 instead of 6", "mlx-lm:llama; step count=9", 2),
        Red("TypeError: x (a.py:1)", "mlx-lm:llama; step count=3", 1),
    ]
    assert found.row().verdict == "red"
    assert found.row().detail == "3 of 3 walks: row 1, step 0: token 5 instead of 6"
    assert [line.strip() for line in found.lines()][1::2] == [
        "mlx-patches lab --patched --replay 'mlx-lm:llama; step count=9'",
        "mlx-patches lab --patched --replay 'mlx-lm:llama; step count=3'",
    ]


@pytest.mark.parametrize(
    ("fate", "message"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "crashed: signal 11"),
        ("time.sleep(60)", "does not end: stopped after 1 s"),
        ("sys.exit('no memory')", "exit code 1: no memory"),
        ("sys.exit(0)", "ended early"),
    ],
)
def test_crashing_walk_is_named(walked, fate, message):
    found = walked(
        "if seed == 5:\n"
        "    walk(5, failure='')\n"
        "    say(walk=6, line='mlx-lm:llama; step count=7')\n"
        f"    {fate}\n"
        "for number in range(seed, 9): walk(number, failure='')\n"
        "say(over=True)",
        seed=5,
        patience=1.0,
    )
    assert found.reds == [Red(message, "mlx-lm:llama; step count=7")]
    assert found.walks == 4


def test_restarts_are_limited(walked):
    found = walked("walk(seed, failure='')")
    assert found.walks == runner.STARTS


def test_rows_without_walks(walked):
    found = walked("say(verdict='not-built', detail='too large'); say(over=True)")
    assert (found.row().verdict, found.row().detail) == ("not-built", "too large")


@pytest.mark.parametrize(
    ("script", "verdict", "detail"),
    [
        ("os.kill(os.getpid(), 11)", "red", "before the first walk: crashed: signal 11"),
        ("sys.exit('no module')", "not-run", "exit code 1: no module"),
        ("walk(0); os.kill(os.getpid(), 9)", "not-run", "crashed: signal 9"),
        ("walk(0); say(verdict='not-run', detail='no x'); say(over=True)", "not-run", "no x"),
    ],
)
def test_failure_outside_of_a_walk(walked, script, verdict, detail):
    row = walked(script).row()
    assert (row.verdict, row.detail) == (verdict, detail)


def test_refused_walks_are_not_applicable(walked):
    row = walked("walk(0, refused='no'); walk(1, refused='no'); say(over=True)").row()
    assert (row.verdict, row.detail) == ("n/a", "2 walks, all of them refused")


@pytest.fixture
def lab(monkeypatch):
    monkeypatch.setattr(
        lab_runner, "choose_families", lambda models, folder: [Family("mlx-lm", "llama")]
    )
    monkeypatch.setattr(lab_runner, "environment", lambda: "mlx-lm 1.0")
    scenarios = []
    monkeypatch.setattr(lab_runner, "measure", lambda task, *_, **__: scenarios.append(task) or [])

    def one(task, seconds, seed, patience):
        red = Red("row 1: 2 tokens, not 3", f"mlx-lm:llama; step count={seed}")
        return Walked("mlx-lm:llama", task.patched, walks=round(seconds), reds=[red])

    monkeypatch.setattr(runner, "walk", one)

    def run(*arguments):
        scenarios.clear()
        done = CliRunner().invoke(cli, ["lab", "--patched", *arguments])
        return done.exit_code, done.output, len(scenarios)

    return run


def test_walks_after_scenarios(lab):
    code, output, scenarios = lab("--walks", "7", "--seed", "3")
    assert (code, scenarios) == (1, 1)
    assert "    mlx-patches lab --patched --replay 'mlx-lm:llama; step count=3'\n" in output
    assert "mlx-lm:llama with the patches, 1 walks: row 1: 2 tokens, not 3\n" in output
    assert lab("--walks", "7", "--scenario", "walks")[2] == 0
    assert lab("--scenario", "walks")[:1] == (1,)
    assert lab("--scenario", "walks", "--scenario", "engine")[2] == 1
    assert lab()[2] == 1


def test_replay_runs_in_both_modes(monkeypatch):
    started = []
    monkeypatch.setattr(
        lab_runner, "choose_families", lambda models, folder: [Family("mlx-lm", "llama")]
    )
    monkeypatch.setattr(
        runner, "_process", lambda command, walked, patience: started.append(command)
    )
    found = runner.replay(LINE)
    assert [one.patched for one in found] == [False, True]
    assert [command[-2:] for command in started] == [["--replay", LINE]] * 2
    assert replace(found[0], patched=True) == found[1]
