"""The scenario ``reference`` without torch: its configs and its comparison."""

import copy
import json
import sys

import pytest

from mlx_patches import MlxPatchesError
from mlx_patches.lab import Cell, Family, reference, runner
from mlx_patches.lab.runner import Row, Task
from mlx_patches.lab.shrink import LAYERS, shrink_values

# A config in transformers' form: its own names, and one entry per layer.
GPT = {
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "layer_types": ["sliding_attention"] * 5 + ["full_attention"] * 7,
    "attention_bias": True,
    "embedding_multiplier": 12.0,
    "attention_dropout": 0.5,
    "sliding_window": 4096,
    "head_dim": 64,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "id2label": {0: "LABEL_0"},
    "max_position_embeddings": 8192,
}
SMALL = shrink_values(GPT, {"n_layer": "num_hidden_layers"})


def test_transformers_config_is_small():
    assert (SMALL["n_embd"], SMALL["n_head"], SMALL["head_dim"]) == (128, 4, 32)
    # Six layers hold both kinds.
    assert SMALL["n_layer"] == len(SMALL["layer_types"]) == 6
    assert SMALL["rope_parameters"] == GPT["rope_parameters"]
    assert SMALL["id2label"] == GPT["id2label"]
    assert shrink_values({"depth": 30, "num_hidden_layers": 30})["num_hidden_layers"] == LAYERS
    small = shrink_values({"num_key_value_heads": 1, "vision_config": {"hidden_size": 1024}})
    assert small == {"num_key_value_heads": 1, "vision_config": {"hidden_size": 128}}

    rope = {"rope_type": "default", "mrope_section": [16, 24, 24]}
    small = shrink_values({"head_dim": 128, "rope_parameters": rope})
    assert sum(small["rope_parameters"]["mrope_section"]) == 16


def test_each_config_changes_one_thing():
    before = copy.deepcopy(SMALL)
    found = dict(reference.configs(SMALL))
    assert before == SMALL
    assert found["attention_bias=false"] == {**SMALL, "attention_bias": False}
    assert found["embedding_multiplier=6.0"] == {**SMALL, "embedding_multiplier": 6.0}
    assert found["window"]["sliding_window"] < reference.TOKENS
    assert found["theta"]["rope_parameters"]["rope_theta"] == 20000.0
    assert found["yarn"]["rope_parameters"]["rope_theta"] == 10000.0
    assert found["yarn"]["max_position_embeddings"] == 64
    assert not any("dropout" in name for name in found)


def test_nested_configs_and_factors():
    found = dict(reference.configs({"text_config": SMALL, "tie_word_embeddings": True}))
    assert found["attention_bias=false"]["text_config"]["attention_bias"] is False
    assert found["linear"]["text_config"]["rope_parameters"]["factor"] == 2.0
    ropes = {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}
    scaled = dict(reference.configs({**SMALL, "rope_parameters": ropes}))["linear"]
    assert scaled["rope_parameters"]["sliding_attention"] == {"rope_theta": 1e4}
    assert scaled["rope_parameters"]["full_attention"]["factor"] == 2.0

    rope = dict(reference.configs(SMALL))["longrope"]["rope_parameters"]
    assert len(rope["short_factor"]) == len(rope["long_factor"]) == 16
    half = {**SMALL, "rope_parameters": {"partial_rotary_factor": 0.5, "rope_theta": 1.0}}
    rope = dict(reference.configs(half))["longrope"]["rope_parameters"]
    assert len(rope["long_factor"]) == 8


@pytest.mark.parametrize(
    ("rope", "old"),
    (
        ({"rope_type": "default"}, {"rope_scaling": None}),
        (
            {"rope_type": "yarn", "factor": 4.0},
            {"rope_scaling": {"rope_type": "yarn", "type": "yarn", "factor": 4.0}},
        ),
        (
            {"rope_type": "default", "mrope_section": [4, 6, 6]},
            {"rope_scaling": {"rope_type": "mrope", "type": "mrope", "mrope_section": [4, 6, 6]}},
        ),
        (
            {"rope_type": "default", "partial_rotary_factor": 0.5},
            {"rope_scaling": None, "partial_rotary_factor": 0.5},
        ),
    ),
)
def test_old_rope_spelling(rope, old):
    saved = {"rope_parameters": {"rope_theta": 5.0, **rope}, "head_dim": 32}
    assert reference.old_rope(saved) == {"head_dim": 32, "rope_theta": 5.0, **old}
    whole = reference.old_rope({"text_config": saved})
    assert whole == {"text_config": {"head_dim": 32, "rope_theta": 5.0, **old}}


WANT = [[1.0, -4.0], [2.0, 3.0], [0.5, 0.25]]


def change(token, value):
    rows = copy.deepcopy(WANT)
    rows[token][0] += value
    return rows


def test_comparison():
    cell = reference.compare(WANT, {"": change(1, 1e-4)})
    assert (cell.verdict, cell.detail) == ("green", "equal")
    assert cell.figure == pytest.approx(2.5e-5)
    got = [[*row, 9.0] for row in WANT]
    assert reference.compare(WANT, {"": got}).verdict == "green"
    cell = reference.compare(WANT, {"": WANT, "a decode is ": change(1, 2.0)})
    assert (cell.verdict, cell.figure) == ("red", 0.5)
    assert cell.detail == "a decode is off by 0.5 of the scale, first at token 1"


@pytest.mark.parametrize("got", (change(2, float("nan")), WANT[:2], [[1.0], [2.0], [0.5]], []))
def test_missing_numbers_are_red(got):
    assert reference.compare(WANT, {"": got}).verdict == "red"


def test_family_has_worst_config():
    found = [Cell("green", "", 0.0), Cell("red", "", 0.5), Cell("n/a", "no")]
    cell = reference.summary(found, "transformers 5.0")
    assert cell == Cell("red", "against transformers 5.0: 1 red, 1 green, 1 n/a", 0.5)


def test_missing_torch_is_one_line(monkeypatch):
    monkeypatch.setattr(reference.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        MlxPatchesError, match=r"torch, torchvision, transformers.*mlx-patches\[reference\]"
    ):
        reference.check()
    monkeypatch.setattr(reference.importlib.util, "find_spec", lambda name: "found")
    reference.check()


def task(**more):
    return Task(
        Family("mlx-lm", "llama"), False, (reference.NAME,), reference=reference.NAME, **more
    )


def row(scenario, verdict="green", detail="equal", patched=False):
    return Row("mlx-lm 1.0", "mlx-lm:llama", patched, scenario, verdict, detail)


def test_crash_is_red(monkeypatch):
    say = {"scenario": "reference:plain", "verdict": "green", "detail": "", "figure": 0.0}
    code = f"import os; print({json.dumps(say)!r}, flush=True); os.kill(os.getpid(), 11)"
    monkeypatch.setattr(Task, "command", lambda self: [sys.executable, "-c", code])
    monkeypatch.setattr(runner, "environment", lambda: "mlx-lm 1.0")
    found = {one.scenario: (one.verdict, one.detail) for one in runner.measure(task())}
    assert found["reference"] == ("red", "crashed: signal 11, in reference")
