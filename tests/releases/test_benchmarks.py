"""The benchmark of the engines: its runs, its output, and models that are not tiny."""

from __future__ import annotations

import importlib.util
import statistics
from pathlib import Path

import pytest

from mlx_patches.lab import build as lab_build
from mlx_patches.lab.shrink import grow_config

pytest.importorskip("mlx.core")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def engine():
    file = Path(__file__).parents[2] / "benchmarks" / "engine.py"
    spec = importlib.util.spec_from_file_location("benchmark_engine", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_line_of_the_table(engine):
    for name in ("llama", "qwen2_5_vl"):
        for family in engine.installed(name):
            model = engine.made(family, engine.SHAPES["tiny"])
            prompts = engine.texts(2, 8, False, model.vocabulary)
            assert [len(prompt) for prompt in prompts] == [8, 6]
            pairs = engine.rounds(model, prompts, 2, (2, 60.0), "wall")
            if any(patched is None for _, patched in pairs):
                pytest.skip("the release's engine does not take these prompts")
            assert len(pairs) == 2
            cells = engine.line(family, 2, "unequal", pairs, 2).strip("| ").split(" | ")
            assert cells[:3] == [str(family), "2", "unequal"]
            assert len(cells) == 9
            assert len(engine.rounds(model, prompts, 2, (9, 0.0), "wall")) == 1
    heads = engine.heading("tiny", engine.SHAPES["tiny"], 2, "wall").splitlines()
    assert heads[-2].count("|") == heads[-1].count("|") == 10


def test_an_interval_holds_the_median(engine):
    values = [0.9, 1.0, 1.02, 1.05, 1.3]
    low, high = engine.interval(values)
    assert low <= statistics.median(values) <= high
    assert engine.interval(values) == (low, high)
    assert engine.interval([1.0] * 5) == (1.0, 1.0)


def test_models_of_a_billion_parameters(engine, monkeypatch):
    """The models are built without drawing weights, so no memory is allocated."""
    from mlx.utils import tree_flatten

    monkeypatch.setattr(lab_build, "_draw_weights", lambda model, seed: None)
    shape = engine.SHAPES["1b"]
    for name in engine.FAMILIES:
        for family in engine.installed(name):
            sizes = {**shape.sizes, **shape.own.get(name, {})}
            model = lab_build.build(family, sizes=sizes).module
            count = sum(value.size for _, value in tree_flatten(model.parameters()))
            assert 2e8 < count < 2e9, family


def test_a_config_grows():
    small = {"num_hidden_layers": 4, "kinds": ["a", "b", "a", "c"], "rope": {"sections": [1]}}
    grown = grow_config(small, {"num_hidden_layers": 6, "sections": [2]})
    assert grown["kinds"] == ["a", "b", "a", "c", "a", "b"]
    assert grown["rope"] == {"sections": [2]}
    assert grow_config(small, {}) == small
