"""An unmodified host in a fresh environment is right when enabled, and wrong when disabled."""

import subprocess
from pathlib import Path

import pytest
import release_sets

from ..hosts.server import AT_A_TIME, prompts, serving
from .conftest import ROOT, run

HOST = "vllm-mlx 0.6.0"
CASE = {"command": "vllm-mlx serve {model} --continuous-batching --offline --port {port}"}
ROUNDS = 20


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory):
    folder = tmp_path_factory.mktemp("host")
    one = release_sets.load()[HOST]
    return str(release_sets.make(one, folder, package=[wheel]))


@pytest.fixture(scope="module")
def model(python, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    command = [python, "-m", "tests.hosts.model", str(folder), "qwen3_5"]
    subprocess.run(command, cwd=ROOT, check=True)
    return folder


def right_rounds(python, model, log):
    """The number of rounds whose concurrent answers all equal the solo answers."""
    sent = prompts(AT_A_TIME)
    with serving(CASE, model, log, patched=None, python=python) as host:
        solo = host.answer_solo(sent)
        return sum(host.answer_batch(sent) == solo for _ in range(ROUNDS))


def test_enable_and_disable(python, model, tmp_path):
    command = str(Path(python).with_name("mlx-patches"))
    print(run(command, "enable", MLX_PATCHES=""))
    enabled = right_rounds(python, model, tmp_path / "enabled.log")
    print(run(command, "disable", MLX_PATCHES=""))
    disabled = right_rounds(python, model, tmp_path / "disabled.log")
    print(f"rounds of {AT_A_TIME} with right answers: enabled {enabled} of {ROUNDS}, ", end="")
    print(f"disabled {disabled} of {ROUNDS}")
    assert enabled == ROUNDS
    assert disabled == 0
