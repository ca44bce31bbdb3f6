"""A window in a left-padded batch, and a broken version of ``dropped-window``."""

from __future__ import annotations

import importlib
from types import SimpleNamespace

import mlx.core as mx
import pytest

import mlx_patches
from mlx_patches.lab import Family
from mlx_patches.lab.build import TOLERANCES, lab_model
from mlx_patches.lab.scenarios import SCENARIOS, forget_solo_runs
from mlx_patches.patches.masks.dropped_window import patch as dropped_window

from ..releases.conftest import installed


class Held:
    """A cache that holds four columns."""

    _idx = 4


def test_a_row_of_a_batch_sees_its_window_alone():
    """A row with two columns of padding, and one without."""
    padding = mx.array([2, 0])[:, None, None, None]
    places = mx.arange(6)
    mask = (places[4:, None] >= places) & (places >= padding)
    seen = dropped_window.narrow_mask(mask, 2, Held(), 3)
    assert (
        seen[0, 0].tolist()
        == seen[1, 0].tolist()
        == [
            [False, False, True, True, True, False],
            [False, False, False, True, True, True],
        ]
    )
    added = dropped_window.narrow_mask(mx.where(mask, 0.0, -1e9), 2, Held(), 3)
    assert mx.array_equal(added == 0, seen).item()
    assert mx.array_equal(dropped_window.narrow_mask("causal", 2, Held(), 3), seen[0, 0]).item()


def test_up_to_the_window_the_mask_is_the_release_s_own():
    for mask in (None, "causal", mx.ones((1, 1, 2, 6), dtype=mx.bool_)):
        assert dropped_window.narrow_mask(mask, 2, Held(), 6) is mask


def test_the_columns_of_a_rotating_cache_are_left_alone():
    cache = Held()
    cache.max_size = 4
    assert dropped_window.narrow_mask(None, 1, cache, 3) is None


def test_a_layer_without_a_window_gets_the_mask_that_it_was_given():
    """Another patch of the same method lets the calls of all layers through."""
    x, layer = mx.zeros((1, 2, 4)), SimpleNamespace()
    assert dropped_window.hide_beyond_window(layer, x, "causal", Held()) == "causal"
    layer._dropped_window = 3
    assert dropped_window.hide_beyond_window(layer, x, "causal", Held()).shape == (2, 6)


# Some fields are of one family alone.
CONFIG = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "intermediate_size": 64,
    "head_dim": 16,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "query_pre_attn_scalar": 16,
    "vocab_size": 96,
    "sliding_window": 8,
    "max_position_embeddings": 512,
    "rope_theta": 1e4,
    "rms_norm_eps": 1e-6,
    "norm_epsilon": 1e-5,
    "tie_word_embeddings": False,
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gemma2", "phi3", "starcoder2"])
def test_windows_are_right_in_every_scenario_of_a_batch(kind, seeded):
    """The lab builds its own models without ``from_dict``, so they have no such window."""
    if not installed("mlx-lm"):
        pytest.skip("mlx-vlm's classes take a config of several parts")
    mlx_patches.apply()
    try:
        family = Family("mlx-lm", kind)
        module = importlib.import_module(f"mlx_lm.models.{family.name}")
        built = module.Model(module.ModelArgs.from_dict({**CONFIG, "model_type": kind}))
        windows = [vars(layer.self_attn).get("_dropped_window") for layer in built.layers]
        assert windows == ([8, None] * 2 if kind == "gemma2" else [8] * 4)
        model = lab_model(family, built, CONFIG, TOLERANCES["float32"])
        forget_solo_runs()
        cells = {name: run(model) for name, run in SCENARIOS.items()}
    finally:
        mlx_patches.restore()
    assert not {name: cell for name, cell in cells.items() if cell.verdict == "red"}
    assert sum(cell.verdict == "green" for cell in cells.values()) > 10


# A call that the check skips; no probe and no family of the lab makes one.
SKIPPED = {"dropped-window": ((SimpleNamespace(), [[0]], None, None), {})}
