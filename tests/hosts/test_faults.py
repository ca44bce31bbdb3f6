"""A host keeps answering when a contributed patch fails in its calls.

Runs in the environment of a release set, whose name is in MLX_PATCHES_HOST_SET: `make hosts`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from . import server
from .server import FAILED, prompts, serving
from .test_hosts import CASES, ROOT, SET

# A function called once per request, and one called once per layer and step.
PLACES = {
    "mlx-lm 0.32.2": (
        ("mlx-lm", "mlx_lm.models.cache", "LRUPromptCache.fetch_nearest_cache"),
        ("mlx-lm", "mlx_lm.models.cache", "BatchKVCache.update_and_fetch"),
    ),
    "vllm-mlx 0.6.0": (
        ("vllm-mlx", "vllm_mlx.memory_cache", "MemoryAwarePrefixCache.fetch"),
        ("mlx-lm", "mlx_lm.models.cache", "BatchKVCache.update_and_fetch"),
    ),
    "mlx-vlm 0.7.10": (
        ("mlx-vlm", "mlx_vlm.server.generation", "ResponseGenerator._gpu_embed"),
        ("mlx-vlm", "mlx_vlm.models.cache", "BatchKVCache.update_and_fetch"),
    ),
}
# How the patch of the first function fails, and how the patch of the second fails.
MODES = {
    "before": ("before", "before"),
    "after": ("after", "after"),
    "middle": ("twice", "change"),
    "none": ("none", "none"),
    "exit": ("leave", "leave"),
    "recursion": ("recurse", "enter_again"),
}
# How many requests may fail. A patch is withdrawn after the first call that changed state. With
# "after", a built-in patch below a step's patch passes other keys to the original, so the
# original's result cannot be used.
LOST = {"middle": 2, "after": 1}
IDS = ("fault-of-a-request", "fault-of-a-step")
COUNT = 5

if SET not in PLACES:
    pytest.skip("this host is tried without faults", allow_module_level=True)
PLACES_HERE = PLACES[SET]
CASE = CASES[SET][0] | {"streams": False}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    family = "llama" if CASE.get("package", "mlx-lm") == "mlx-lm" else CASE["family"]
    command = [sys.executable, "-m", "tests.hosts.model", str(folder), family]
    command += [CASE["package"]] if "package" in CASE else []
    subprocess.run(command, cwd=ROOT, check=True)
    return folder


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(server, "ANSWER_SECONDS", 30)
    monkeypatch.setattr(server, "TOKENS", 6)


@pytest.fixture
def answer_prompts(model, tmp_path, monkeypatch):
    """Runs a host with faults; returns its answers to single requests, and its log."""

    def ask(*faults, count=COUNT):
        log = tmp_path / "log"
        if faults:
            install(tmp_path / "site")
            paths = [str(tmp_path / "site"), *filter(None, [os.environ.get("PYTHONPATH")])]
            monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
        planted = [(IDS[i], how, *PLACES_HERE[i]) for i, how in enumerate(faults)]
        monkeypatch.setenv("TESTS_FAULTS", json.dumps(planted))
        with serving(CASE, model, log, patched=True) as host:
            answers = host.answer_one_by_one(prompts(count))
        return answers, log.read_text()

    return ask


def install(folder: Path) -> None:
    info = folder / "their_package-1.0.dist-info"
    info.mkdir(parents=True)
    shutil.copy(Path(__file__).with_name("faulty.py"), folder / "their_faults.py")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n")
    points = "one = their_faults:REQUEST\ntwo = their_faults:STEP\n"
    (info / "entry_points.txt").write_text(f"[mlx_patches.patches]\n{points}")


@pytest.fixture(scope="module")
def right(model, tmp_path_factory):
    log = tmp_path_factory.mktemp("right") / "log"
    with pytest.MonkeyPatch.context() as patching, serving(CASE, model, log, True) as host:
        patching.setattr(server, "TOKENS", 6)
        return host.answer_solo(prompts(COUNT))


@pytest.mark.parametrize("mode", MODES)
def test_host_answers_after_failures(mode, right, answer_prompts):
    answers, log = answer_prompts(*MODES[mode])
    failed = [i for i, answer in enumerate(answers) if answer != right[i]]
    print(f"{mode}: {COUNT - len(failed)} of {COUNT} answered\n{answers}\n{log}")
    for id_ in IDS:
        assert f"mlx_patches: {id_}" in log
    assert len(failed) <= LOST.get(mode, 0), answers
    assert all(answers[i].startswith(FAILED) for i in failed)


@pytest.mark.parametrize("mode", ["before", "none", "exit"])
def test_strict_raises(mode, answer_prompts, monkeypatch):
    monkeypatch.setenv("MLX_PATCHES_STRICT", "1")
    monkeypatch.setattr(server, "ANSWER_SECONDS", 10)
    answers, log = answer_prompts(*MODES[mode], count=1)
    print(f"{answers}\n{log}")
    assert answers[0].startswith(FAILED)
    assert f"the patch {IDS[0]} of mlx_patches" in log
