import mlx.core as mx
import pytest

from mlx_patches.patches.models.images_apart.patch import AXES, call_by_image

TWO = [[1, 2, 3], [1, 1, 4]]


def calls_of(pixels, grids, axis, answer=lambda pixels: pixels):
    """The pixels and grids passed to the release's tower, and its results."""
    seen = []

    def tower(model, pixels, grid_thw, output_hidden_states=None):
        seen.append((pixels, grid_thw.tolist(), output_hidden_states))
        return answer(pixels)

    call, grids = call_by_image(axis), mx.array(grids)
    return seen, call(tower, None, pixels, grid_thw=grids, output_hidden_states=True)


@pytest.mark.parametrize("axis", sorted(set(AXES.values())))
def test_images_are_encoded_separately(axis):
    pixels = mx.arange(10).reshape((10, 1) if axis == 0 else (1, 10))
    seen, _ = calls_of(pixels, TWO, axis, lambda pixels: pixels.reshape(-1))
    assert [one.reshape(-1).tolist() for one, _, _ in seen] == [[*range(6)], [*range(6, 10)]]
    assert [grid for _, grid, _ in seen] == [TWO[:1], TWO[1:]]
    assert [more for _, _, more in seen] == [True, True]


def test_feature_order():
    pixels = mx.arange(10)[:, None]
    assert calls_of(pixels, TWO, 0)[1].tolist() == pixels.tolist()
    listed = calls_of(pixels, TWO, 0, lambda pixels: [pixels])[1]
    assert [one.shape for one in listed] == [(6, 1), (4, 1)]


@pytest.mark.parametrize(
    "grids", [TWO[:1], TWO, [[0, 0, 0]]], ids=["an image", "other pixels", "no patches"]
)
def test_other_calls_are_unchanged(grids):
    pixels = mx.arange(6)[:, None]
    seen, out = calls_of(pixels, grids, 0)
    assert len(seen) == 1 and seen[0][0] is pixels and out is pixels
