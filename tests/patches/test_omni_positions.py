"""Positions of Qwen3-Omni's prompts beyond the probe: when they are computed, and of what."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from mlx_patches.patches.positions.omni_positions.patch import GRIDS, embed_with_positions


def embed(**passed):
    """What the model is asked to compute while a prompt is embedded."""
    asked = []
    model = SimpleNamespace(get_rope_index=lambda *given: asked.append(given))
    thinker = SimpleNamespace(language_model=model)

    def release(own, ids, **given):
        assert (own, given) == (thinker, passed)
        return "embeddings"

    assert embed_with_positions(release, thinker, "ids", **passed) == "embeddings"
    return asked


@pytest.mark.parametrize(
    ("passed", "grids"),
    [
        ({GRIDS[0]: "images", "pixel_values": "pixels"}, ("images", None)),
        ({GRIDS[1]: "videos"}, (None, "videos")),
        ({GRIDS[0]: "images", GRIDS[1]: "videos"}, ("images", "videos")),
    ],
    ids=["images", "videos", "both"],
)
def test_positions_are_computed_once(passed, grids):
    assert embed(**passed) == [("ids", *grids)]


@pytest.mark.parametrize("passed", [{}, {GRIDS[0]: None, "pixel_values": None}])
def test_text_computes_no_positions(passed):
    assert embed(**passed) == []
