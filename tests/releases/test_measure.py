"""Users' own configs: published configs build small, and the audit measures them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mlx_patches.auditing import audit
from mlx_patches.auditing.models import implementations
from mlx_patches.lab import Family
from mlx_patches.lab import folder as measuring
from mlx_patches.lab.child import built

pytestmark = pytest.mark.slow

TEXT = {
    "hidden_size": 2560,
    "num_hidden_layers": 36,
    "intermediate_size": 10240,
    "num_attention_heads": 20,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "vocab_size": 262208,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": True,
}
SLIDING = (["sliding_attention"] * 5 + ["full_attention"]) * 6
LLAMA = {
    "model_type": "llama",
    **TEXT,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
    },
}
# Configs as published, reduced to the keys whose shape or nesting matters.
CONFIGS = {
    "llama": LLAMA,
    "gemma3": {
        "model_type": "gemma3",
        "text_config": {
            **TEXT,
            "model_type": "gemma3_text",
            "sliding_window": 1024,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        },
    },
    "gemma4": {
        "model_type": "gemma4",
        "text_config": {
            **TEXT,
            "model_type": "gemma4_text",
            "global_head_dim": 512,
            "sliding_window": 512,
            "layer_types": SLIDING,
            "num_kv_shared_layers": 18,
            "hidden_size_per_layer_input": 256,
        },
    },
    "mistral3": {"model_type": "mistral3", "text_config": {**TEXT, "model_type": "mistral"}},
    "phi3": {
        "model_type": "phi3",
        **TEXT,
        "partial_rotary_factor": 0.75,
        "original_max_position_embeddings": 4096,
        "rope_scaling": {
            "type": "longrope",
            "short_factor": [1.0] * 48,
            "long_factor": [1.5] * 48,
        },
    },
    "qwen2_vl": {
        "model_type": "qwen2_vl",
        **TEXT,
        "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
    },
}
CASES = [
    pytest.param(Family(*one), CONFIGS[name], id=f"{one[0]}:{name}")
    for name in CONFIGS
    for one in implementations(name).items()
]


def saved(folder, config):
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(("family", "config"), CASES)
def test_a_published_config_builds_small(family, config, tmp_path):
    model, blunt = built(family, saved(tmp_path, config))
    assert blunt == ""
    assert len(model.make_cache()) <= 8


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "mlx_patches", "audit", *arguments], capture_output=True, text=True
    )


def test_the_audit_measures_a_folder(tmp_path):
    start = time.monotonic()
    done = run("--model", str(saved(tmp_path, LLAMA)), "--measure", "--json")
    assert time.monotonic() - start < 35  # the time limit of the measurement is 26
    report = json.loads(done.stdout)
    assert report["measured"]["dtype"] == "float32"
    assert report["exit_code"] == done.returncode
    for one in report["verdicts"]:
        assert one["verdict"] in ("right", "repaired", "wrong"), one["note"]
        assert one["scenarios"] > 0


# The configs of ten published models: sizes, layer kinds and nesting as their folders have them.
PUBLISHED = json.loads((Path(__file__).parent / "published.json").read_text())


HERE = [name for name, one in PUBLISHED.items() if implementations(one["model_type"])]


@pytest.mark.parametrize("name", HERE)
def test_the_verdict_on_a_folder_is_that_of_its_measurement(name, tmp_path, monkeypatch):
    monkeypatch.setattr(measuring, "SECONDS", 600.0)  # every scenario ends
    folder = str(saved(tmp_path, PUBLISHED[name]))
    evidence = measuring.evidence_of(tmp_path)
    said, measured = audit.audit(folder), audit.audit(folder, evidence=evidence)
    assert said.exit_code() == measured.exit_code()
    for one, other in zip(said.verdicts, measured.verdicts, strict=True):
        assert other.note == ""
        left, found = (
            {cell.name: cell.wrong_with_patches for cell in each.cells} for each in (one, other)
        )
        differing = [name for name in left.keys() & found if left[name] != found[name]]
        assert not differing
        assert one.verdict == other.verdict


def test_code_of_a_folder_is_not_run(tmp_path):
    saved(tmp_path, {**LLAMA, "model_file": "evil.py"})
    (tmp_path / "evil.py").write_text("open('evil', 'w')")
    done = run("--model", str(tmp_path), "--measure")
    assert done.returncode == 2
    assert "model_file is evil.py" in done.stderr and len(done.stderr.splitlines()) == 1
