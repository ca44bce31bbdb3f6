import mlx.core as mx
import pytest

from mlx_patches.patches.models.video_beside_image.patch import IGNORES_VIDEOS, MODELS
from mlx_patches.patches.models.video_beside_image.probe import (
    IMAGE,
    VIDEO,
    expect_embeddings,
    make_inputs,
    make_model,
)

from ..releases.models import or_skip

ORDERS = [(IMAGE, VIDEO), (VIDEO, IMAGE)]


@pytest.fixture(params=MODELS.split())
def model(request):
    with or_skip():
        return make_model(request.param)


@pytest.mark.parametrize("order", ORDERS, ids=["image first", "video first"])
def test_embeddings_follow_the_tokens(order, model, ungated):
    ungated("video-beside-image")
    tokens, inputs = make_inputs(*order)
    found = model.get_input_embeddings(tokens, **inputs)
    assert found.inputs_embeds.reshape(-1).tolist() == expect_embeddings(tokens)
    masks = getattr(found, "visual_pos_masks", None)
    if masks is not None:
        assert masks.reshape(-1).tolist() == [one in (IMAGE, VIDEO) for one in tokens[0].tolist()]
    grids = inputs["image_grid_thw"], inputs["video_grid_thw"]
    expected, _ = model.language_model.get_rope_index(tokens, *grids)
    positions = getattr(found, "position_ids", None)
    if positions is None:  # Qwen3-Omni up to 0.6.3 computes none here
        positions = getattr(model.language_model, "_position_ids", expected)
    assert mx.array_equal(positions, expected)


def test_video_without_an_image_is_embedded(ungated):
    with or_skip():
        model = make_model(IGNORES_VIDEOS)
    ungated("video-beside-image")
    tokens, inputs = make_inputs(VIDEO)
    found = model.get_input_embeddings(tokens, **inputs)
    assert found.inputs_embeds.reshape(-1).tolist() == expect_embeddings(tokens)


def test_rows_have_own_media(model, ungated):
    ungated("video-beside-image")
    tokens, inputs = make_inputs(VIDEO, IMAGE)
    other, _ = make_inputs(IMAGE, VIDEO)
    doubled = {name: mx.concatenate([value, value]) for name, value in inputs.items()}
    found = model.get_input_embeddings(mx.concatenate([tokens, other]), **doubled)
    rows = found.inputs_embeds.reshape(2, -1).tolist()
    assert rows == [expect_embeddings(tokens), expect_embeddings(other)]


def test_image_is_left_to_the_release(model, ungated):
    tokens, inputs = make_inputs(IMAGE)
    released = model.get_input_embeddings(tokens, **inputs).inputs_embeds
    ungated("video-beside-image")
    assert mx.array_equal(released, model.get_input_embeddings(tokens, **inputs).inputs_embeds)
