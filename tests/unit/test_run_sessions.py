"""``tools/run_sessions.py``, with a stand-in for nox."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "run_sessions.py"
NOX = """
import json, os, sys, time
from pathlib import Path
if "--list" in sys.argv:
    print(json.dumps([{"session": name} for name in ("good", "bad", "long(one)", "short(one)")]))
    sys.exit()
name = sys.argv[-1]
folder = Path(os.environ["TMPDIR"])
(folder / "busy").touch(exist_ok=False)
if "one" in name:
    Path("busy").touch(exist_ok=False)
    time.sleep(0.2 if "long" in name else 0)
    Path("busy").unlink()
(folder / "busy").unlink()
for number in range(100):
    print(f"{name}, line {number}", flush=True)
print(f"{name}: an error", file=sys.stderr, flush=True)
sys.exit(name == "bad")
"""


@pytest.fixture
def tool(monkeypatch, tmp_path):
    spec = importlib.util.spec_from_file_location("run_sessions", TOOL)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "run_sessions", module)
    spec.loader.exec_module(module)
    (tmp_path / "nox.py").write_text(NOX)
    # A session fails where another one uses its environment, or its folder of kernels.
    monkeypatch.setattr(module, "NOX", (sys.executable, str(tmp_path / "nox.py")))
    monkeypatch.setattr(module, "AT_ONCE", 4)
    monkeypatch.setattr(sys, "argv", ["run_sessions.py", "quick"])
    monkeypatch.chdir(tmp_path)
    return module


def test_a_failed_session_fails_the_run_and_its_output_ends_it(tool, capsys):
    with pytest.raises(SystemExit) as ended:
        tool.main()
    assert ended.value.code == 1
    said = capsys.readouterr().out
    shown, again = said.split("== FAILED: bad; the end of its output\n")
    for name in ("good", "bad", "long(one)", "short(one)"):
        assert f"{name}, line 0\n" in shown and f"{name}: an error\n" in shown
    assert again.startswith("bad, line 41\n") and "bad: an error\n" in again
    assert "good, line" not in again and again.count("passed  ") == 3
    assert "3 passed, 1 failed\n" in again


def test_the_next_session_is_the_first_whose_environment_is_free(tool):
    waiting = ["quick(mlx-lm 0.32.2)", "hosts(mlx-lm 0.31.3)", "lint"]
    assert tool.startable(waiting, []) == "quick(mlx-lm 0.32.2)"
    assert tool.startable(waiting, ["release(mlx-lm 0.32.2)"]) == "hosts(mlx-lm 0.31.3)"
    assert tool.startable(waiting[:1], ["release(mlx-lm 0.32.2)"]) == ""


def test_sessions_that_pass_are_not_shown_again(tool, capsys, monkeypatch):
    listed = json.dumps([{"session": "good"}])
    stand_in = Path(tool.NOX[1])
    stand_in.write_text(f"import sys\nif '--list' in sys.argv: print({listed!r})\n")
    with pytest.raises(SystemExit) as ended:
        tool.main()
    assert ended.value.code == 0
    assert "FAILED" not in capsys.readouterr().out
