import importlib
from types import SimpleNamespace

import mlx.core as mx
import pytest

from mlx_patches.patches import catalogue
from mlx_patches.patches.positions.mrope_images import patch as mrope_images
from mlx_patches.patches.positions.mrope_images.patch import find_images
from mlx_patches.patches.positions.mrope_images.probe import (
    CONFIG,
    IMAGE,
    VIDEO,
    count_positions,
    make_model,
    make_prompt,
)

PATCH = catalogue.builtin().get("mrope-images")
ONE, OTHER = (4, 6), (6, 4)
TARGETS = [pytest.param(target, id=target.module.split(".")[2]) for target in PATCH.targets]


@pytest.fixture
def model(ungated):
    (target,) = [target for target in PATCH.targets if ".qwen2_vl." in target.module]
    try:
        importlib.import_module(target.module)
    except ImportError:
        pytest.skip("mlx-vlm is not installed")
    ungated("mrope-images")
    return make_model(target)


def grids(*sizes):
    return mx.array([[1, *size] for size in sizes])


def deltas_of(positions, mask):
    """The next position minus the number of tokens, with padding."""
    kept = mx.where(mask == 1, positions, 0)
    return [[int(row.max()) + 1 - row.size] for row in kept.max(axis=0)]


@pytest.mark.parametrize("sizes", [[ONE, OTHER], [OTHER, ONE, ONE], [ONE]], ids=len)
def test_image_grid_positions(sizes, model):
    tokens = make_prompt(*sizes)
    positions, deltas = model.get_rope_index(mx.array([tokens]), grids(*sizes))
    assert positions[:, 0].tolist() == count_positions(tokens, sizes)
    assert deltas.reshape(-1, 1).tolist() == deltas_of(positions, mx.ones((1, len(tokens))))


def test_rows_have_own_images(model):
    texts = [make_prompt(ONE, OTHER), make_prompt(OTHER), make_prompt()]
    longest = max(map(len, texts))
    rows = [text + [9] * (longest - len(text)) for text in texts]
    sizes = [ONE, OTHER], [OTHER], []
    positions, deltas = model.get_rope_index(mx.array(rows), grids(ONE, OTHER, OTHER))
    for row, (text, own) in enumerate(zip(rows, sizes, strict=True)):
        assert positions[:, row].tolist() == count_positions(text, own)
    assert deltas.reshape(-1, 1).tolist() == deltas_of(positions, mx.ones((3, longest)))


def test_positions_after_padding(model):
    tokens, sizes = make_prompt(ONE, OTHER), (ONE, OTHER)
    mask = mx.array([[0, 0] + [1] * len(tokens)])
    positions, deltas = model.get_rope_index(mx.array([[3, 3, *tokens]]), grids(*sizes), None, mask)
    own = positions[:, 0, 2:]
    assert (own - own[:, :1]).tolist() == count_positions(tokens, sizes)
    assert deltas.reshape(-1, 1).tolist() == deltas_of(positions, mask)


@pytest.mark.parametrize("kinds", [[VIDEO, VIDEO], [IMAGE, VIDEO], [VIDEO, IMAGE]])
def test_positions_of_videos(kinds, model):
    sizes = (ONE, OTHER)
    tokens = make_prompt(*sizes)
    like_images = count_positions(tokens, sizes)
    left = iter(kinds)
    for before, at in zip([0, *range(len(tokens))], range(len(tokens)), strict=False):
        if tokens[at] == IMAGE:
            tokens[at] = tokens[before] if tokens[before] in (IMAGE, VIDEO) else next(left)
    media = [
        grids(*(s for s, own in zip(sizes, kinds, strict=True) if own == kind))
        if kind in kinds
        else None
        for kind in (IMAGE, VIDEO)
    ]
    positions, _ = model.get_rope_index(mx.array([tokens]), *media)
    assert positions[:, 0].tolist() == like_images


@pytest.mark.parametrize("target", TARGETS)
def test_single_image_is_left_to_release(target, ungated):
    try:
        importlib.import_module(target.module)
    except ImportError:
        pytest.skip("this release lacks the family")
    given = mx.array([make_prompt(ONE)] * 2), grids(ONE, ONE), None, None
    released = make_model(target).get_rope_index(*given)
    ungated("mrope-images")
    again = make_model(target).get_rope_index(*given)
    assert all(map(mx.array_equal, released, again))


@pytest.mark.parametrize(
    ("images", "videos"),
    [
        (None, None),
        (grids(ONE), None),
        (None, grids(ONE)),
        (grids(ONE, ONE, ONE), None),
    ],
    ids=["text", "an image", "a video", "sizes of other images"],
)
def test_other_prompts_are_unchanged(images, videos):
    seen = []

    def index(model, *given):
        seen.append(given)
        return "positions", "deltas"

    ids, model = mx.array([make_prompt(ONE, OTHER)]), SimpleNamespace(config=CONFIG)
    out = mrope_images.index_each_image(index, model, ids, images, videos, None)
    assert out == ("positions", "deltas")
    assert len(seen) == 1 and seen[0][0] is ids and seen[0][1] is images and seen[0][2] is videos


def test_images_are_found_by_first_token():
    assert find_images([IMAGE, IMAGE, 5, IMAGE, VIDEO, IMAGE], [IMAGE]) == [0, 3, 5]
    assert find_images([IMAGE, IMAGE, VIDEO, VIDEO, IMAGE], [IMAGE, VIDEO]) == [0, 2, 4]
    assert find_images([5, 6], [IMAGE]) == []
