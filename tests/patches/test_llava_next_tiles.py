"""The arrangement of LLaVA-NeXT's tiles beyond the probe: grids, padding, wrong counts."""

from __future__ import annotations

from types import SimpleNamespace

import mlx.core as mx
import pytest

from mlx_patches.patches.models.llava_next_tiles import patch

from ..releases.models import module_or_skip


def config(**more):
    return SimpleNamespace(vision_config=SimpleNamespace(image_size=336), **more)


@pytest.mark.parametrize(
    "size, grid", [((336, 336), (1, 2)), ((200, 640), (1, 2)), ((900, 300), (3, 1))]
)
def test_published_grids_are_the_default(size, grid):
    assert patch.find_grid(config(), size) == grid


def test_other_grids():
    kept = config(_image_grids=[[336, 336]], image_grid_pinpoints=None)
    assert patch.find_grid(kept, (200, 640)) == (1, 1)

    model = SimpleNamespace(
        config=SimpleNamespace(image_token_index=9), image_newline=mx.zeros((2,))
    )
    features, embeds = mx.zeros((2, 4, 2)), mx.zeros((1, 5, 2))
    with pytest.raises(ValueError, match=r"^3 image tokens for 10 features$"):
        patch.merge_features(
            model, [(4, 4)], [(1, 1)], features, embeds, mx.array([[1, 9, 9, 9, 2]])
        )


@pytest.mark.parametrize(
    "size, shape", [((10, 10), (4, 4)), ((5, 10), (2, 4)), ((10, 5), (4, 2)), ((7, 10), (2, 4))]
)
def test_padding_is_removed(size, shape):
    assert patch.remove_padding(mx.zeros((4, 4, 1)), size).shape[:2] == shape


def test_conversation_has_several_images(ungated):
    prompts = module_or_skip("mlx_vlm.prompt_utils")
    given = (None, {"model_type": "llava_next"}, "Compare them.")
    with pytest.raises(ValueError, match="does not support multi-image"):
        prompts.apply_chat_template(*given, num_images=2, return_messages=True)
    ungated("llava-next-tiles")
    (message,) = prompts.apply_chat_template(*given, num_images=2, return_messages=True)
    assert [part["type"] for part in message["content"]].count("image") == 2
