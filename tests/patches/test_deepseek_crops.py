import mlx.core as mx
import pytest

from mlx_patches.lab import Family
from mlx_patches.lab.whole import LAST, build_whole, embed_prompt
from mlx_patches.patches.models.deepseek_crops.patch import CROPS, append_end

from ..releases.models import module_or_skip, or_skip


def test_nothing_follows_last_image():
    crops = append_end(mx.array([[[1, 2], [3, 4]], [[5, 6], [0, 0]]]))
    assert crops.tolist() == [[[1, 2], [3, 4], [0, 0]], [[5, 6], [0, 0], [0, 0]]]
    assert append_end(None) is None


@pytest.mark.usefixtures("patched")
@or_skip()
def test_image_without_end_token():
    """One size and three tiles, as the release's processor makes them of a wide image."""
    module_or_skip("mlx_vlm")
    whole = build_whole(Family("mlx-vlm", "deepseek_vl_v2"))
    tokens = [1, 2, *whole.tokens, LAST]
    shown = whole.images.inputs(tokens, [0])
    right = embed_prompt(whole.module, tokens, shown)["inputs_embeds"]
    own = shown | {CROPS: mx.array([[[1, 1]]])}
    for _ in range(20):
        again = embed_prompt(whole.module, tokens, own)["inputs_embeds"]
        assert mx.array_equal(again, right)
