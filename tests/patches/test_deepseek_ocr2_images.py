from types import SimpleNamespace

import mlx.core as mx
import pytest

from mlx_patches.patches.models.deepseek_ocr2_images import patch

PROCESSOR = SimpleNamespace(image_token="<image>")


class Released:
    """An embedding step that records its calls; a token's embedding is its id."""

    def __init__(self):
        self.calls = []

    def __call__(self, model, input_ids, *given, **more):
        self.calls.append(given)
        return SimpleNamespace(inputs_embeds=mx.repeat(input_ids[..., None], 2, axis=-1))


def embed(released, ids, mask, crops, tiles=0):
    whole = mx.arange(float(len(crops))).reshape(-1, 1, 1, 1)
    pixels = [mx.arange(float(tiles)).reshape(-1, 1, 1, 1), whole]
    return patch.embed_apart(released, None, ids, pixels, mx.array(crops), mask).inputs_embeds


def test_each_image_has_its_tiles():
    crops = [[1, 1], [2, 3], [0, 0], [2, 1]]
    counts = [0, 6, 0, 2]
    lengths = [144 * count + 257 for count in counts]
    rows = [[0, 5, *[1] * lengths[0], *[1] * lengths[1], 5]]
    rows += [[5, *[1] * lengths[2], 5, *[1] * lengths[3]]]
    rows[1] = [0] * (len(rows[0]) - len(rows[1])) + rows[1]
    ids, released = mx.array(rows), Released()
    found = embed(released, ids, ids == 1, crops, sum(counts))
    assert mx.array_equal(found[..., 1], ids)
    seen = [
        ([] if tiles is None else tiles.reshape(-1).tolist(), whole.item(), mask.sum().item())
        for (tiles, whole), _, mask in released.calls
    ]
    assert seen == [
        ([], 0, lengths[0]),
        ([0, 1, 2, 3, 4, 5], 1, lengths[1]),
        ([], 2, lengths[2]),
        ([6, 7], 3, lengths[3]),
    ]


@pytest.mark.parametrize("crops", [[[1, 1]], [[2, 1]]])
def test_release_gets_images_of_other_sizes(crops):
    ids, released = mx.ones((1, 20), mx.int32), Released()
    embed(released, ids, ids == 1, crops, 2)
    assert len(released.calls) == 1
    assert released.calls[0][0][0] is not None


def test_text_has_one_call():
    released = Released()
    patch.embed_apart(released, None, mx.ones((2, 3), mx.int32))
    assert released.calls == [(None, None, None)]


@pytest.mark.parametrize(
    ("text", "images", "expected"),
    [
        ("<image><image>", [1, 2], [1, 2]),
        (["<image>", "<image>"], [1, 2], [1, 2]),
        (["<image><image>", "<image>"], [1, 2, 3], [[1, 2], [3]]),
        (["<image><image>", ""], [1, 2], [1, 2]),
        (["<image><image>"], [1], [1]),
        (["a"], None, None),
    ],
)
def test_prompts_get_their_images(text, images, expected):
    assert patch.group_images(PROCESSOR, text, images) == expected
