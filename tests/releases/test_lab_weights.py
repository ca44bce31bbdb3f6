"""``lab --weights`` on a folder with weights, here of a tiny model."""

import json

import mlx.core as mx
import pytest

from mlx_patches.lab import Family, NotBuilt
from mlx_patches.lab.build import build
from mlx_patches.lab.child import build_family
from mlx_patches.lab.scenarios import SCENARIOS
from mlx_patches.lab.weights import load

pytest.importorskip("mlx_lm")
LLAMA = Family("mlx-lm", "llama")


def save(folder, dtype, config=None):
    from mlx.utils import tree_flatten

    model = build(LLAMA)
    weights = {k: v.astype(dtype) for k, v in tree_flatten(model.module.parameters())}
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    known = {**model.config, "model_type": "llama", **(config or {})}
    (folder / "config.json").write_text(json.dumps(known))
    return folder


@pytest.mark.parametrize("name", ("float32", "float16", "bfloat16"))
def test_right_model_is_green_in_own_dtype(tmp_path, name):
    model = load(LLAMA, save(tmp_path, getattr(mx, name)))
    for scenario in ("left-padded", "extend", "filter"):
        cell = SCENARIOS[scenario](model)
        assert cell.verdict == "green", cell.detail
        assert "nats" in cell.detail


@pytest.mark.parametrize("name", ("float32", "bfloat16"))
def test_wrong_position_is_red(tmp_path, name, monkeypatch):
    """The second row's tokens are rotated one position too far."""
    from mlx_lm.models import cache

    model = load(LLAMA, save(tmp_path, getattr(mx, name)))
    assert SCENARIOS["left-padded"](model).verdict == "green"
    for kind in (cache.BatchKVCache, cache.BatchRotatingKVCache):
        update = kind.update_and_fetch

        def shift_offset(self, keys, values, update=update):
            before = self.left_padding
            out = update(self, keys, values)
            if keys.shape[2] > 1:
                self.offset = self.offset + mx.arange(self.offset.size)
            assert before is not None
            return out

        monkeypatch.setattr(kind, "update_and_fetch", shift_offset)
    assert SCENARIOS["left-padded"](model).verdict == "red"


def test_folder_code_is_not_run(tmp_path):
    save(tmp_path, mx.float32, {"model_file": "evil.py"})
    (tmp_path / "evil.py").write_text("raise SystemExit('ran')")
    with pytest.raises(NotBuilt, match="model_file"):
        load(LLAMA, tmp_path)


def test_folder_without_weights(tmp_path):
    save(tmp_path, mx.float32)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(NotBuilt, match="FileNotFoundError"):
        load(LLAMA, tmp_path)


@pytest.mark.parametrize("consent", ["", "1"])
def test_code_of_a_tokenizer_needs_consent(tmp_path, monkeypatch, consent):
    save(tmp_path, mx.float32)
    settings = {"auto_map": {"AutoTokenizer": ["own.Own", None]}, "tokenizer_class": "Own"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / "own.py").write_text("raise ValueError('own.py ran')")
    monkeypatch.setenv("MLX_PATCHES_TRUST_REMOTE_CODE", consent)
    why = "own.py ran" if consent else r"own code \(auto_map in tokenizer_config.json\): set MLX_"
    for folders in ((tmp_path, None), (None, tmp_path)):
        with pytest.raises(NotBuilt, match=why):
            build_family(LLAMA, *folders)
