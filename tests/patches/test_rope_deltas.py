"""Rope deltas beyond the probe: image prompts are told apart, and a row alone does not change."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from mlx_patches.lab import Family, NotBuilt, engine
from mlx_patches.lab.build import build
from mlx_patches.lab.rows import decode, feed, row_with_image, rows_of
from mlx_patches.patches import catalogue
from mlx_patches.patches._shared import row_record
from mlx_patches.patches.positions.rope_deltas import kept_deltas, minicpm, prompts
from mlx_patches.patches.positions.rope_deltas import patch as rope_deltas
from mlx_patches.patches.positions.rope_deltas import prompts as image_prompts
from mlx_patches.patches.positions.rope_deltas.patch import FAMILIES
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
    return [row.logits[place] for place in sorted(row.logits)]


def test_a_row_alone_is_bit_for_bit_as_before(model, ungated):
    def alone():
        engine.forget(model)
        texts = rows_of(model, [7, 11])
        rows = [row_with_image(model, 11, (2, 2)), texts[0], row_with_image(model, 10, (3, 2))]
        return [logits for row in [*rows, texts[1]] for logits in said(model, row)]

    before = alone()
    ungated(PATCH)
    assert all(map(mx.array_equal, before, alone()))


def waiting(*prompts):
    """A queue of image prompts that are not fed yet: token ids, position ids, and a mask."""
    queue = image_prompts.Waiting()
    for ids, places, *mask in prompts:
        positions = mx.broadcast_to(mx.array([[places]]), (3, 1, len(places)))
        split = image_prompts.split_prompts(
            mx.array([ids]), positions, mx.array(mask) if mask else None
        )
        queue.note(split, positions)
    return queue


def claim(queue, *texts):
    return [queue.claim(image_prompts.as_bytes(mx.array(text, mx.int32))) for text in texts]


def places(prompt):
    return None if prompt is None else prompt.positions(0, prompt.length)[0, 0].tolist()


def test_a_row_gets_the_positions_of_its_own_tokens():
    queue = waiting(([5, 9, 9, 6], [0, 1, 1, 2]), ([5, 9, 9, 9, 7], [0, 1, 1, 1, 2]))
    found = claim(queue, [5, 9, 9, 9], [5, 9, 9, 6], [5, 8], [])
    assert [places(prompt) for prompt in found] == [[0, 1, 1, 1, 2], [0, 1, 1, 2], None, None]


def test_right_padding_is_no_part_of_a_prompt():
    queue = waiting(([5, 9], [0, 1]), ([5, 9, 9, 6], [0, 1, 1, 2]))
    (found,) = claim(queue, [5, 9, 9, 6, 0, 0])
    assert places(found) == [0, 1, 1, 2]
    assert found.positions(2, 6)[0, 0].tolist() == [1, 2, 3, 4]


def test_the_same_tokens_with_other_images_keep_their_order():
    text = [5, 9, 9]
    prompts = [(text, [7, 7, 7]), (text, [0, 1, 1]), (text, [0, 1, 2])]
    queue = waiting(*prompts)
    held = claim(queue, text)
    held += claim(queue, text, [4], text)
    assert [places(prompt) for prompt in held] == [[7, 7, 7], [0, 1, 1], None, [0, 1, 2]]
    # Several rows with the tokens of one waiting prompt all get its positions.
    both = claim(waiting(prompts[-1]), text, text)
    assert [places(prompt) for prompt in both] == [[0, 1, 2]] * 2


@pytest.mark.parametrize("positions", [[1, 1, 2, 3, 3], [1, 1, 0, 1, 1]])
def test_left_padding_is_left_out(positions):
    prompt = ([0, 0, 5, 9, 9], positions, [0, 0, 1, 1, 1])
    (found,) = claim(waiting(prompt), [5, 9])
    assert (found.length, places(found)) == (3, [0, 1, 1])
    (padded,) = claim(waiting(prompt), [0, 0, 5])
    assert (padded.length, places(padded)) == (5, positions)


def test_a_delta_is_that_of_the_tokens_so_far():
    text = [5, 6, 9, 9, 9, 7]
    (prompt,) = claim(waiting((text, [0, 1, 2, 2, 2, 3])), text)
    assert [prompt.delta(end).item() for end in (2, 5, 6, 9)] == [0, -2, -2, -2]


def follow(queue, held, starts, *pieces):
    return image_prompts.follow_prompts(queue, held, starts, mx.array(pieces))


def test_rows_that_began_alike_get_their_own_prompts():
    queue = waiting(([5, 9, 9, 6], [0, 1, 1, 2]), ([5, 9, 9, 9, 7], [0, 1, 1, 1, 2]))
    first = follow(queue, [None] * 2, [-1, 0], [0, 5], [5, 9])
    second = follow(queue, first, [1, 2], [9, 9], [9, 6])
    assert [len(places(prompt)) for prompt in second] == [4, 4]
    third = follow(queue, [second[0], None], [3, 4], [9, 7], [8, 8])
    assert [places(prompt) for prompt in third] == [[0, 1, 1, 1, 2], None]


def test_a_text_that_began_alike_gives_the_prompt_back():
    queue = waiting(([5, 9, 9, 6], [0, 1, 1, 2]))
    text = follow(queue, [None], [0], [5, 9])
    assert places(text[0])
    assert follow(queue, text, [2], [8, 8]) == [None]
    assert places(*claim(queue, [5, 9]))


def test_what_is_in_a_cache_without_a_record_is_no_beginning():
    queue = waiting(([5, 9, 9, 6], [0, 1, 1, 2]))
    assert follow(queue, [None], [2], [5, 9]) == [None]


def test_prompts_that_nobody_is_fed_are_dropped():
    queue = waiting(*(([number, 9], [0, 1]) for number in range(2 * image_prompts.WAITING)))
    assert len(queue._queue) == image_prompts.WAITING
    assert claim(queue, [0, 9]) == [None]


def test_a_prompt_goes_with_the_row_that_held_it():
    queue = waiting(([5, 9], [0, 1]))
    (held,) = claim(queue, [5, 9])
    assert queue
    del held
    assert not queue


def test_threads_may_note_and_claim_at_once():
    queue = image_prompts.Waiting()

    def work(number):
        for turn in range(200):
            text = image_prompts.as_bytes(mx.array([number, turn], mx.int32))
            queue.note([image_prompts.ImagePrompt(text, None)], mx.array(0))
            assert queue.claim(text).prompt.tokens == text

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert not queue


def test_waiting_prompts_go_with_their_model():
    class Model(dict):
        """Like an MLX module, a dictionary without a hash."""

    model, other = Model(), Model()
    assert image_prompts.waiting_prompts(model) is not image_prompts.waiting_prompts(other)
    assert image_prompts.waiting_prompts(model) is image_prompts.waiting_prompts(model)
    key = id(model)
    del model
    assert key not in image_prompts._models


def test_nothing_is_kept_for_an_object_without_weak_references():
    stand_in = SimpleNamespace()
    assert not image_prompts.waiting_prompts(stand_in)


def test_positions_of_a_whole_prompt_are_cut_to_the_piece():
    whole = mx.arange(33).reshape(3, 1, 11)
    assert mx.array_equal(rope_deltas.of_piece(whole, 6, 4), whole[..., 6:10])
    for offset, length in ((0, 11), (6, 6), (mx.array([6]), 4)):
        assert rope_deltas.of_piece(whole, offset, length) is whole


def deltas_that_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    write = row_record.write_record

    def write_others(cache: Any, record: Any) -> None:
        deltas = record.deltas
        write(cache, record if deltas is None else dataclasses.replace(record, deltas=deltas - 1))

    monkeypatch.setattr(row_record, "write_record", write_others)
    monkeypatch.setattr(rope_deltas, "holds_saved_positions", lambda *_: True)
    monkeypatch.setattr(prompts.RowPrompt, "fits", lambda *_: False)
    monkeypatch.setattr(kept_deltas, "own_deltas", lambda *_: None)
    monkeypatch.setattr(rope_deltas, "of_piece", lambda position_ids, *_: position_ids)


@pytest.mark.parametrize(
    ("stored", "rows", "given", "replaced"),
    [
        (2, 3, {}, True),
        (3, 3, {}, False),
        (4, 3, {}, False),  # those of a batch that lost its last row
        (1, 3, {}, False),
        (0, 3, {}, False),
        (2, 3, {"rope_deltas": 0}, False),
        (2, 3, {"position_ids": 0}, False),
    ],
)
def test_only_a_call_that_would_raise_gets_one_delta_of_0(stored, rows, given, replaced):
    deltas = mx.ones((stored, 1), mx.int32) if stored else None
    model = SimpleNamespace(_rope_deltas=deltas)
    said = minicpm.with_one(lambda *args, **kwargs: kwargs, model, mx.zeros((rows, 4)), **given)
    assert said == given
    if replaced:
        assert model._rope_deltas.tolist() == [[0]]
    else:
        assert model._rope_deltas is deltas


def deltas_of_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minicpm, "delta_for_all", lambda deltas: deltas)


MUTANTS = {"rope-deltas": deltas_that_stay, "minicpm-deltas": deltas_of_all_rows}
