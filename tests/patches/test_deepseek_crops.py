"""Crops beyond the probe: what is read of them, and that an image is always seen."""

from __future__ import annotations

import mlx.core as mx
import pytest

from mlx_patches.lab import Family
from mlx_patches.lab.whole import LAST, build_whole, embedded
from mlx_patches.patches.models.deepseek_crops import patch as deepseek_crops
from mlx_patches.patches.models.deepseek_crops.patch import CROPS, with_end

from ..releases.models import module_or_skip, or_skip


def test_nothing_follows_last_image():
    crops = with_end(mx.array([[[1, 2], [3, 4]], [[5, 6], [0, 0]]]))
    assert crops.tolist() == [[[1, 2], [3, 4], [0, 0]], [[5, 6], [0, 0], [0, 0]]]


def test_embedding_step_arguments():
    def embed(model, pixel_values=None, images_spatial_crop=None, **kwargs):
        return images_spatial_crop

    changed = deepseek_crops.end_crops(embed)
    given = mx.array([[[1, 1]]])
    assert changed(1, 2) is None
    for own in (changed(1, 2, given), changed(1, **{CROPS: given})):
        assert own.tolist() == [[[1, 1], [0, 0]]]


@pytest.mark.usefixtures("patched")
@or_skip()
def test_image_without_end_token():
    """One size and three tiles, as the release's processor makes them of a wide image."""
    module_or_skip("mlx_vlm")
    whole = build_whole(Family("mlx-vlm", "deepseek_vl_v2"))
    tokens = [1, 2, *whole.tokens, LAST]
    shown = whole.images.inputs(tokens, [0])
    right = embedded(whole.module, tokens, shown)["inputs_embeds"]
    own = shown | {CROPS: mx.array([[[1, 1]]])}
    for _ in range(20):
        again = embedded(whole.module, tokens, own)["inputs_embeds"]
        assert mx.array_equal(again, right)
