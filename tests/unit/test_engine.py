"""The recipe for mlx-engine, with a stand-in for its source: what it asks, and what is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOWNSTREAM = ROOT / "tools" / "downstream"
sys.path.insert(0, str(DOWNSTREAM))

import engine  # noqa: E402
import release_sets  # noqa: E402

# A model that continues a prompt by its length; ``wrong`` changes the answers to such requests.
ENGINE = """
import threading, time
from types import SimpleNamespace as N

WRONG = {wrong!r}
busy, lock = 0, threading.Lock()

class BatchedKit:
    cancelled = frozenset()

def load_model(folder, max_seq_nums, max_kv_size, prefill_step_size):
    return BatchedKit()

def unload(kit): pass

def tokenize(kit, text):
    return [1 + ord(letter) % 90 for letter in text]

def stop_generation(kit, name):
    kit.cancelled |= {{name}}

def create_generator(kit, tokens, temp, max_tokens, request_id, repetition_penalty=0, **more):
    global busy
    with lock:
        busy += 1
    for number in range(max_tokens):
        time.sleep(0.002)
        shift = 1 if WRONG == "penalty" and repetition_penalty and busy > 1 else 0
        if request_id in kit.cancelled:
            break
        if WRONG == "error" and number == 3:
            raise RuntimeError("no memory")
        yield N(tokens=[N(id=(len(tokens) + number + shift) % 90)])
    with lock:
        busy -= 1
"""


def ask(folder: Path, wrong: str = "") -> subprocess.CompletedProcess[str]:
    """Run the child with the stand-in for the engine, and for transformers."""
    (folder / "mlx_engine.py").write_text(ENGINE.format(wrong=wrong))
    (folder / "transformers.py").touch()
    paths = f"{ROOT}:{folder}"
    command = [sys.executable, str(DOWNSTREAM / "engine_child.py"), str(folder)]
    return subprocess.run(command, env={"PYTHONPATH": paths}, capture_output=True, text=True)


def test_an_engine_that_is_right_differs_in_no_way(tmp_path):
    done = ask(tmp_path)
    assert not done.returncode, done.stderr
    ways = json.loads(done.stdout)
    assert not engine.differing(ways)
    assert engine.table(ways) == "right in 8 ways"
    assert {len(pairs) for pairs in ways.values()} == {3, 6}


def test_penalized_requests_that_are_wrong_beside_others_are_counted(tmp_path):
    ways = json.loads(ask(tmp_path, "penalty").stdout)
    found = engine.differing(ways)
    assert found and set(found) <= {"with processors", "with processors, joining"}
    assert "of 6 with processors" in engine.table(ways)


def test_a_request_without_an_answer_alone_ends_it_in_one_line(tmp_path):
    done = ask(tmp_path, "error")
    assert done.returncode == 1
    assert done.stderr == "request 0 alone: RuntimeError: no memory\n"


@pytest.mark.parametrize("text", ["", "mlx-vlm @ git+https://x/mlx-vlm.git@0123456789abcdef\n"])
def test_a_checkout_with_another_pin_is_refused_in_one_line(tmp_path, text):
    (tmp_path / "mlx_engine").mkdir()
    (tmp_path / "requirements.txt").write_text(text)
    with pytest.raises(SystemExit, match=r"requirements.txt: .* add it to PINNED"):
        engine.pinned(tmp_path)


def test_a_folder_that_is_no_checkout_is_refused(tmp_path):
    with pytest.raises(SystemExit, match="no checkout of mlx-engine"):
        engine.pinned(tmp_path)


def test_each_pin_has_a_release_set_with_models(tmp_path):
    (tmp_path / "mlx_engine").mkdir()
    sets = release_sets.load()
    for commit, name in engine.PINNED.items():
        (tmp_path / "requirements.txt").write_text(f"mlx-vlm @ git+x/mlx-vlm.git@{commit}00\n")
        assert engine.pinned(tmp_path) == name
        assert name in sets and engine.MODELS[name]
