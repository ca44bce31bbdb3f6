"""`lab --reference` with real releases and transformers; nox installs the extra `reference`."""

import json
import subprocess
import sys

import pytest

from mlx_patches.lab.runner import PROCESS


def cells(family, mode="--unpatched"):
    """Config to verdict and detail, and the exit code."""
    command = [sys.executable, "-m", "mlx_patches", "lab", "--reference", "--json", mode]
    done = subprocess.run([*command, "--model", family], capture_output=True, text=True)
    assert done.stdout, done.stderr
    rows = json.loads(done.stdout)["cells"]
    assert PROCESS not in {row["scenario"] for row in rows}, rows
    found = {row["scenario"].partition(":")[2]: (row["verdict"], row["detail"]) for row in rows}
    return found, done.returncode


def test_llama_equals_transformers():
    found, _ = cells("llama")
    for name in ("plain old", "theta old", "llama3 old", "yarn old", "attention_bias=true"):
        assert found[name] == ("green", "equal"), name


def test_all_rope_settings_are_read():
    found, _ = cells("qwen3")
    for name in (
        *("plain old", "theta old", "linear old", "llama3 old"),
        *("yarn old", "tie_word_embeddings=true"),
    ):
        assert found[name] == ("green", "equal"), name


def test_unread_rope_is_red():
    """mlx-lm reads qwen3_moe's rope_scaling and does not use it."""
    found, code = cells("qwen3_moe")
    assert found["plain old"] == ("green", "equal")
    verdict, detail = found["yarn old"]
    assert verdict == "red" and "of the scale, first at token 1" in detail
    assert code == 1


def test_wrong_experts_are_red():
    """mlx-lm drops the correction of ernie4_5_moe's router."""
    found, code = cells("ernie4_5_moe")
    verdict, detail = found["plain old"]
    assert verdict == "red" and "first at token 0" in detail
    assert code == 1


def test_unloadable_spelling_is_repaired():
    before, _ = cells("smollm3")
    after, _ = cells("smollm3", "--patched")
    assert before["plain"][0] == "red"
    assert after["plain"] == ("green", "equal")


def test_missing_family_has_reason():
    found, code = cells("plamo2")
    assert found == {"": ("n/a", found[""][1])}
    assert "has no model type plamo2" in found[""][1]
    assert code == 0


@pytest.mark.parametrize("mode", ("--unpatched", "--patched"))
def test_decode_equals_prefill_in_all_caches(mode):
    found, _ = cells("gemma3_text", mode)
    assert found["plain old"] == found["window"] == ("green", "equal")
