import gc
import importlib
from types import SimpleNamespace

import pytest

from mlx_patches.core.distributions import source_file
from mlx_patches.lab import Family
from mlx_patches.lab.build import build
from mlx_patches.patches import catalogue
from mlx_patches.patches._shared.kept import Kept
from mlx_patches.patches.generation.kv_bits_refused import patch as kv_bits_refused
from mlx_patches.patches.generation.kv_bits_refused.probe import (
    generate_lm,
    generate_solo,
    is_quantized,
)

from ..releases.conftest import is_installed
from ..releases.models import build_or_skip

lm = pytest.mark.skipif(not is_installed("mlx-lm"), reason="no mlx-lm here")
vlm = pytest.mark.skipif(not is_installed("mlx-vlm"), reason="no mlx-vlm here")
PATCH = catalogue.builtin().get("kv-bits-refused")


@lm
@pytest.mark.parametrize(("name", "supported"), [("qwen3", True), ("gemma2", False)])
def test_model_is_tried_once_per_kind(name, supported, ungated, monkeypatch):
    tried = []
    try_quantized = kv_bits_refused.try_quantized
    monkeypatch.setattr(
        kv_bits_refused,
        "try_quantized",
        lambda *args: tried.append(args[1:]) or try_quantized(*args),
    )
    ungated("kv-bits-refused")
    built = build(Family("mlx-lm", name))
    for _ in range(3):
        generate_lm(importlib.import_module("mlx_lm.generate").generate_step, built)
    assert tried == [(8, 32)]
    model = built.module
    assert kv_bits_refused.supports_bits(model, 4, 32) is supported
    assert kv_bits_refused.supports_bits(model, 4, 32) is supported
    assert tried == [(8, 32), (4, 32)]
    other = build(Family("mlx-lm", name)).module
    assert kv_bits_refused.supports_bits(other, 8, 32) is supported
    assert len(tried) == 3


@lm
def test_result_is_released_with_model():
    gc.collect()
    before = set(kv_bits_refused._RESULTS._held)
    model = build(Family("mlx-lm", "qwen3")).module
    kv_bits_refused.supports_bits(model, 8, 32)
    assert len(kv_bits_refused._RESULTS._held) == len(before) + 1
    del model
    gc.collect()
    assert set(kv_bits_refused._RESULTS._held) <= before


@vlm
def test_trial_leaves_vision_model():
    model = build_or_skip("mlx-vlm:qwen2_5_vl").module
    mx = importlib.import_module("mlx.core")
    model._rope_deltas, model._position_ids = mx.array([[7]]), None
    before = dict(model), dict(vars(model))
    kinds = importlib.import_module("mlx_vlm.models.cache")
    caches = [kinds.KVCache() for _ in model.layers]
    assert kv_bits_refused.accepts(model, caches)
    assert not kv_bits_refused.accepts(model, [object()] * len(caches))
    for part, kept in zip((model, vars(model)), before, strict=True):
        assert part.keys() == kept.keys()
        assert all(part[name] is kept[name] for name in kept)


@vlm
@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"kv_bits": 8, "kv_key_bits": 4, "max_tokens": 3}, {"max_tokens": 3}),
        ({"kv_bits": 8, "kv_group_size": 32}, {"kv_group_size": 32}),
    ],
)
def test_unsupported_model_gets_no_bits(options, wanted, monkeypatch):
    tried = []
    monkeypatch.setattr(
        kv_bits_refused,
        "try_quantized_batch",
        lambda model, make, options: tried.append(options) or False,
    )
    monkeypatch.setattr(kv_bits_refused, "_RESULTS", Kept(dict))

    class Model:
        pass

    model = Model()
    modules = [target.module for target in PATCH.targets if source_file(target.module)]
    module = next(name for name in modules if hasattr(importlib.import_module(name), "_make_cache"))
    for _ in range(2):
        assert kv_bits_refused.keep_batch_options(model, module, options) == wanted
    assert len(tried) == 1 and "max_tokens" not in tried[0]


@vlm
@pytest.mark.parametrize(("family", "drops"), [("unlimited_ocr", True), ("qwen2_5_vl", False)])
def test_answers_are_trimmed(family, drops):
    assert kv_bits_refused.drops_answers(build_or_skip(f"mlx-vlm:{family}").module) is drops


@vlm
@pytest.mark.parametrize("name", ["falcon_ocr", "gemma3", "gpt_oss", "phi4mm", "unlimited_ocr"])
def test_solo_keeps_float_caches(name, ungated, monkeypatch, caplog):
    model = build_or_skip(f"mlx-vlm:{name}")
    monkeypatch.setattr(kv_bits_refused, "_RESULTS", Kept(dict))
    kv_bits_refused.warn.cache_clear()
    ungated("kv-bits-refused")
    assert generate_solo(model) == 6
    assert not is_quantized(generate_solo, model)
    (warning,) = [one for one in caplog.records if "kv_bits is ignored" in one.message]
    assert warning.levelname == "WARNING" and "language" in warning.message


@vlm
def test_supported_solo_is_quantized(ungated, caplog):
    ungated("kv-bits-refused")
    assert is_quantized(generate_solo, build_or_skip("mlx-vlm:qwen2_5_vl"))
    assert not caplog.records


@vlm
def test_bits_need_a_release_that_quantizes():
    model = build_or_skip("mlx-vlm:qwen2_5_vl").module

    def quantize(caches, **options):
        raise NotImplementedError

    assert not kv_bits_refused.try_quantized_vlm(model, quantize, {})
    assert kv_bits_refused.try_quantized_vlm(model, lambda caches, **options: None, {})


# A call that the check skips; no probe and no family of the lab makes one.
SKIPPED = {"kv-bits-refused": ((SimpleNamespace(), SimpleNamespace()), {"kv_bits": None})}
