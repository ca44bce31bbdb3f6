import mlx.core as mx
import pytest

from mlx_patches.lab.image_scenarios import whole_of
from mlx_patches.lab.whole import END, IMAGE, START, embed_prompt
from mlx_patches.patches.models.granite4_images.patch import join_tiles, split_features
from mlx_patches.probes.batch_invariance import tiny

from ..releases.models import or_skip

# The sizes of tiny images, and how many tiles and tokens each has.
EDGE = 112
SIZES = {(EDGE, EDGE): (2, 36), (EDGE, 2 * EDGE): (3, 52)}


@pytest.fixture
@or_skip()
def model():
    found = whole_of(tiny("mlx-vlm", "granite4_vision")).module
    found.config.image_grid_pinpoints = [list(size) for size in SIZES]
    return found


def prompt(*sizes):
    spans = ([START, *[IMAGE] * SIZES[size][1], END] for size in sizes)
    return [token for span in spans for token in span]


def images(*sizes):
    """Images of random pixels, the same in every prompt, padded to an equal number of tiles."""
    most = max(SIZES[size][0] for size in sizes)
    pixels = mx.zeros((len(sizes), most, 3, EDGE, EDGE))
    for at, size in enumerate(sizes):
        tiles = SIZES[size][0]
        key = mx.random.key(tiles)
        pixels[at, :tiles] = mx.random.normal((tiles, 3, EDGE, EDGE), key=key)
    return {"pixel_values": pixels, "image_sizes": mx.array(sizes)}


def features(model, *sizes):
    made = embed_prompt(model, prompt(*sizes), images(*sizes))
    return made["deepstack_visual_embeds"]


@pytest.mark.parametrize("order", [[*SIZES], [*SIZES][::-1]], ids=["padded first", "padded last"])
def test_images_of_different_sizes_equal_solo(order, model, ungated):
    solo = [features(model, size) for size in order]
    ungated("granite4-images")
    again = [features(model, size) for size in order]
    assert all(map(mx.array_equal, solo, again))
    both = features(model, *order)
    assert mx.allclose(both, mx.concatenate(solo, axis=1), atol=1e-4)


def test_only_padding_is_removed():
    pixels = mx.arange(6).reshape(2, 3)
    assert join_tiles(pixels, [2, 3]).tolist() == [[0, 1, 3, 4, 5]]
    assert join_tiles(pixels, [2]) is pixels
    assert join_tiles(pixels[:1], [3]).tolist() == [[0, 1, 2]]
    given = mx.arange(5)
    assert [part.tolist() for part in split_features(given, [2, 3])] == [[0, 1], [2, 3, 4]]
    (whole,) = split_features(given, [2, 2])
    assert whole is given
