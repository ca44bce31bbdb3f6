"""Rope deltas beyond the probe: image prompts are told apart, and a row alone is left as it is."""

from __future__ import annotations

import pytest

from mlx_patches.lab import Family, NotBuilt, engine
from mlx_patches.lab.build import build
from mlx_patches.lab.scenarios import decode, feed, row_with_image, rows_of
from mlx_patches.patches import catalogue
from mlx_patches.patches.positions import prompts as image_prompts
from mlx_patches.patches.positions.rope_deltas import FAMILIES
from mlx_patches.probes import NotApplicable

mx = pytest.importorskip("mlx.core")
pytest.importorskip("mlx_vlm")
PATCH = catalogue.builtin().get("rope-deltas")


@pytest.fixture(params=FAMILIES)
def model(request):
    try:
        built = build(Family("mlx-vlm", request.param))
        row_with_image(built, 11, (2, 2))
    except (NotApplicable, NotBuilt) as reason:
        pytest.skip(str(reason))
    engine.forget(built)
    return built


def said(model, row):
    feed(model, [row], cache := model.make_cache(), row.chunks[0])
    decode(model, [row], cache, 4)
    return [row.said[place] for place in sorted(row.said)]


def test_a_row_alone_is_bit_for_bit_as_before(model, ungated):
    def alone():
        engine.forget(model)
        texts = rows_of(model, [7, 11])
        rows = [row_with_image(model, 11, (2, 2)), texts[0], row_with_image(model, 10, (3, 2))]
        return [logits for row in [*rows, texts[1]] for logits in said(model, row)]

    before = alone()
    ungated(PATCH)
    assert all(map(mx.array_equal, before, alone()))


class Model:
    """What notes prompts."""


def noted(*prompts):
    """A model that noted prompts: their token ids and position ids."""
    model = Model()
    for ids, places, *mask in prompts:
        positions = mx.broadcast_to(mx.array([[places]]), (3, 1, len(places)))
        image_prompts.note(model, mx.array([ids]), positions, mx.array(mask) if mask else None)
    return image_prompts.prompts(model)


def rows(*texts):
    return [image_prompts.as_bytes(mx.array(text)) for text in texts]


def places(prompt):
    return None if prompt is None else prompt.positions[0, 0].tolist()


def test_a_row_gets_the_positions_of_its_own_tokens():
    kept = noted(([5, 9, 9, 6], [0, 1, 1, 2]), ([5, 9, 9, 9, 7], [0, 1, 1, 1, 2]))
    found = image_prompts.found(kept, rows([5, 9, 9, 9], [5, 9, 9, 6], [5, 8], []))
    assert [places(prompt) for prompt in found] == [[0, 1, 1, 1, 2], [0, 1, 1, 2], None, None]


def test_right_padding_is_no_part_of_a_prompt():
    kept = noted(([5, 9], [0, 1]), ([5, 9, 9, 6], [0, 1, 1, 2]))
    (found,) = image_prompts.found(kept, rows([5, 9, 9, 6, 0, 0]))
    assert places(found) == [0, 1, 1, 2]
    assert found.between(2, 6)[0, 0].tolist() == [1, 2, 3, 4]


def test_the_same_tokens_with_other_images_keep_their_order():
    kept = noted(([5, 9, 9], [7, 7, 7]), ([5, 9, 9], [0, 1, 1]), ([5, 9, 9], [0, 1, 2]))
    text = [5, 9, 9]
    assert [places(p) for p in image_prompts.found(kept, rows(text))] == [[0, 1, 2]]
    both = image_prompts.found(kept, rows(text, [4], text))
    assert [places(p) for p in both] == [[0, 1, 1], None, [0, 1, 2]]
    four = image_prompts.found([kept[-1]], rows(text, text))
    assert [places(p) for p in four] == [[0, 1, 2]] * 2


def test_left_padding_is_left_out():
    kept = noted(([0, 0, 5, 9, 9], [1, 1, 2, 3, 3], [0, 0, 1, 1, 1]))
    assert [len(prompt.tokens) // 4 for prompt in kept] == [5, 3]
    assert places(kept[1]) == [0, 1, 1]


def test_a_delta_is_that_of_the_tokens_so_far():
    (prompt,) = noted(([5, 6, 9, 9, 9, 7], [0, 1, 2, 2, 2, 3]))
    assert [prompt.delta(end).item() for end in (2, 5, 6, 9)] == [0, -2, -2, -2]


def test_what_was_fed_is_known_as_long_as_nothing_else_is_in_the_cache():
    cache = Model()
    fed = image_prompts.fed
    assert fed(cache, [-1, 0], mx.array([[0, 5], [6, 7]])) == rows([5], [6, 7])
    assert fed(cache, [1, 2], mx.array([[8, 9], [8, 9]])) == rows([5, 8, 9], [6, 7, 8, 9])
    assert fed(cache, [4, 5], mx.array([[1, 2], [1, 2]])) == [b"", b""]
