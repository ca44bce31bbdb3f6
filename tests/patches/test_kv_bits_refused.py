"""Whether a model can read quantized caches is tested once, and remembered while it lives."""

from __future__ import annotations

import gc
import importlib

import pytest

from mlx_patches.lab import Family
from mlx_patches.lab.build import build
from mlx_patches.patches import catalogue
from mlx_patches.patches.generation.kv_bits_refused import patch as kv_bits_refused
from mlx_patches.patches.generation.kv_bits_refused.probe import answer

from ..releases.conftest import installed

pytestmark = pytest.mark.skipif(not installed("mlx-lm"), reason="no mlx-lm here")
PATCH = catalogue.builtin().get("kv-bits-refused")


@pytest.mark.parametrize(("name", "reads"), [("qwen3", True), ("gemma2", False)])
def test_a_model_is_asked_once_for_each_kind_of_quantization(name, reads, ungated, monkeypatch):
    asked = []
    goes_on = kv_bits_refused.goes_on
    monkeypatch.setattr(
        kv_bits_refused, "goes_on", lambda *args: asked.append(args[1:]) or goes_on(*args)
    )
    ungated(PATCH)
    model = build(Family("mlx-lm", name)).module
    for _ in range(3):
        answer(importlib.import_module("mlx_lm.generate").generate_step, [model])
    assert asked == [(8, 32)]
    assert kv_bits_refused.reads_quantized(model, 4, 32) is reads
    assert kv_bits_refused.reads_quantized(model, 4, 32) is reads
    assert asked == [(8, 32), (4, 32)]
    other = build(Family("mlx-lm", name)).module
    assert kv_bits_refused.reads_quantized(other, 8, 32) is reads
    assert len(asked) == 3


def test_the_answers_go_with_the_model():
    gc.collect()
    before = dict(kv_bits_refused._ANSWERS)
    model = build(Family("mlx-lm", "qwen3")).module
    kv_bits_refused.reads_quantized(model, 8, 32)
    assert len(kv_bits_refused._ANSWERS) == len(before) + 1
    del model
    gc.collect()
    assert set(kv_bits_refused._ANSWERS) <= set(before)


def models_that_read_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_bits_refused, "reads_quantized", lambda model, bits, group_size: True)


MUTANTS = {"kv-bits-refused": models_that_read_all}
