from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest

from mlx_patches.core.verbs import result
from mlx_patches.lab import engine, solo_scenarios
from mlx_patches.lab.rows import decode, feed, record_logits, row_with_image, rows_of
from mlx_patches.lab.walks import program, walk
from mlx_patches.patches._shared import row_record
from mlx_patches.patches.positions.rope_deltas import minicpm, probe, turns
from mlx_patches.patches.positions.rope_deltas import prompts as image_prompts
from mlx_patches.patches.positions.rope_deltas.patch import FAMILIES

from ..releases.models import build_or_skip, or_skip

pytest.importorskip("mlx_vlm")


@pytest.fixture(params=FAMILIES)
@or_skip()
def model(request):
    built = build_or_skip(f"mlx-vlm:{request.param}")
    row_with_image(built, 11, (2, 2))
    engine.forget(built)
    return built


def list_logits(model, row):
    feed(model, [row], cache := model.make_cache(), row.chunks[0])
    decode(model, [row], cache, 4)
    return [row.logits[place] for place in sorted(row.logits)]


def test_solo_is_bit_identical(model, ungated):
    def run_solo():
        engine.forget(model)
        texts = rows_of(model, [7, 11])
        rows = [row_with_image(model, 11, (2, 2)), texts[0], row_with_image(model, 10, (3, 2))]
        return [logits for row in [*rows, texts[1]] for logits in list_logits(model, row)]

    before = run_solo()
    ungated("rope-deltas")
    assert all(map(mx.array_equal, before, run_solo()))


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


def test_rows_get_own_positions():
    queue = waiting(([5, 9, 9, 6], [0, 1, 1, 2]), ([5, 9, 9, 9, 7], [0, 1, 1, 1, 2]))
    found = claim(queue, [5, 9, 9, 9], [5, 9, 9, 6], [5, 8], [])
    assert [places(prompt) for prompt in found] == [[0, 1, 1, 1, 2], [0, 1, 1, 2], None, None]
    queue = waiting(([5, 9], [0, 1]), ([5, 9, 9, 6], [0, 1, 1, 2]))
    (found,) = claim(queue, [5, 9, 9, 6, 0, 0])
    assert places(found) == [0, 1, 1, 2]
    assert found.positions(2, 6)[0, 0].tolist() == [1, 2, 3, 4]

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
def test_left_padding_is_ignored(positions):
    prompt = ([0, 0, 5, 9, 9], positions, [0, 0, 1, 1, 1])
    (found,) = claim(waiting(prompt), [5, 9])
    assert (found.length, places(found)) == (3, [0, 1, 1])
    (padded,) = claim(waiting(prompt), [0, 0, 5])
    assert (padded.length, places(padded)) == (5, positions)


def test_delta_of_tokens_so_far():
    text = [5, 6, 9, 9, 9, 7]
    (prompt,) = claim(waiting((text, [0, 1, 2, 2, 2, 3])), text)
    assert [prompt.delta(end).item() for end in (2, 5, 6, 9)] == [0, -2, -2, -2]


def follow(queue, held, starts, *chunks):
    return image_prompts.follow_prompts(queue, held, starts, mx.array(chunks))


def test_rows_follow_their_prompts():
    queue = waiting(([5, 9, 9, 6], [0, 1, 1, 2]), ([5, 9, 9, 9, 7], [0, 1, 1, 1, 2]))
    first = follow(queue, [None] * 2, [-1, 0], [0, 5], [5, 9])
    second = follow(queue, first, [1, 2], [9, 9], [9, 6])
    assert [len(places(prompt)) for prompt in second] == [4, 4]
    third = follow(queue, [second[0], None], [3, 4], [9, 7], [8, 8])
    assert [places(prompt) for prompt in third] == [[0, 1, 1, 1, 2], None]
    queue = waiting(([5, 9, 9, 6], [0, 1, 1, 2]))
    text = follow(queue, [None], [0], [5, 9])
    assert places(text[0])
    assert follow(queue, text, [2], [8, 8]) == [None]
    assert places(*claim(queue, [5, 9]))

    queue = waiting(([5, 9, 9, 6], [0, 1, 1, 2]))
    assert follow(queue, [None], [2], [5, 9]) == [None]

    queue = waiting(([5, 9, 9, 6], [0, 1, 1, 2]))
    assert follow(queue, [None], [3], [6]) == [None]

    # The rows that came from a prefix cache begin there.
    queue = waiting(([1, 9, 9, 6], [0, 1, 1, 2]), ([5, 9, 9, 7], [0, 1, 1, 3]))
    deltas = mx.array([[0]])
    row = image_prompts.follow_prompts(queue, [None], [1], mx.array([[9, 9]]), deltas)
    assert places(row[0]) == [0, 1, 1, 2]
    assert places(follow(queue, row, [3], [7, 0])[0]) == [0, 1, 1, 3]


@pytest.mark.parametrize(
    "known, found", [(None, [0, 1, 1, 2, 3]), (0, [0, 1, 1, 2, 3]), (-1, None)]
)
def test_prompt_continues_from_prefix_cache(known, found):
    """With the rope delta of the text in the cache, which other prompts do not have."""
    queue = waiting(([5, 9, 9, 6, 7], [0, 1, 1, 2, 3]))
    deltas = None if known is None else mx.array([[known]])
    begun = mx.array([[9, 9, 6]]), mx.array([[7]])
    (row,) = image_prompts.follow_prompts(queue, [None], [1], begun[0], deltas)
    assert places(row) == found
    if found:
        assert image_prompts.follow_prompts(queue, [row], [4], begun[1]) == [row]


@pytest.mark.parametrize("image", [None, (2, 2)], ids=["text", "image"])
@pytest.mark.parametrize("begun", [2, 8])
def test_prefix_cache_after_another_image(model, ungated, image, begun):
    """The cache has no record, as one that a prefix cache made from saved states."""
    if engine.own_positions(model):
        pytest.skip("the host passes positions")
    ungated("rope-deltas")

    def go_on(other: Any = None) -> Any:
        engine.forget(model)
        row = row_with_image(model, 11, image) if image else rows_of(model, [11])[0]
        engine.embed(model, row.image)
        record_logits([row], model.call([row.take(begun)], cache := model.make_cache()))
        cache = engine.restore_copies(cache)
        for one in (row.image, other):  # each request's embeddings are computed before its turn
            if one is not None:
                engine.embed(model, one)
        record_logits([row], model.call([row.take(11 - begun)], cache))
        decode(model, [row], cache, 2)
        return [row.logits[place] for place in (10, 11, 12)]

    other = row_with_image(model, 10, (3, 2)).image
    assert all(map(mx.allclose, go_on(), go_on(other)))


def test_waiting_prompts_are_released():
    queue = waiting(*(([number, 9], [0, 1]) for number in range(2 * image_prompts.WAITING)))
    assert len(queue._queue) == image_prompts.WAITING
    assert claim(queue, [0, 9]) == [None]
    queue = waiting(([5, 9], [0, 1]))
    (held,) = claim(queue, [5, 9])
    assert queue
    del held
    assert not queue

    class Model(dict):
        """Like an MLX module, a dictionary without a hash."""

    model, other = Model(), Model()
    assert image_prompts.find_waiting(model) is not image_prompts.find_waiting(other)
    assert image_prompts.find_waiting(model) is image_prompts.find_waiting(model)
    key = id(model)
    del model
    assert key not in image_prompts._WAITING._held

    stand_in = SimpleNamespace()
    assert not image_prompts.find_waiting(stand_in)


def test_only_positions_that_the_model_computes_are_queued():
    """vllm-mlx computes them as well, and a later prompt with the same tokens would get these."""

    def index(model, input_ids, image_grid_thw=None, video_grid_thw=None, attention_mask=None):
        return mx.zeros((3, *input_ids.shape)), None

    (target,) = result("mlx_vlm.models.qwen2_vl.language:Model.index", image_prompts.note_prompts)
    noting, model = target.factory(index), type("Model", (), {})()
    given = {"index": noting, "model": model, "ids": mx.array([[3, 9]]), "grid": mx.array([1])}
    for module, queued in (("vllm_mlx.mllm", False), ("mlx_vlm.models.qwen2_vl", True)):
        exec("index(model, ids, grid)", {"__name__": module, **given})
        assert bool(image_prompts.find_waiting(model)) == queued


def test_threads_note_and_claim():
    queue = image_prompts.Waiting()

    def work(number):
        for turn in range(200):
            text = image_prompts.as_bytes(mx.array([number, turn], mx.int32))
            queue.note([image_prompts.ImagePrompt(text, None)], mx.array(0))
            assert queue.claim(text).prompt.tokens == text

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert not queue


def test_positions_are_cut_to_chunk():
    whole = mx.arange(33).reshape(3, 1, 11)
    assert mx.array_equal(turns.slice_chunk(whole, 6, 4), whole[..., 6:10])
    for offset, length in ((0, 11), (6, 6)):
        assert turns.slice_chunk(whole, offset, length) is whole


def test_second_turn_continues_first(model, ungated):
    if not probe.takes_turns(model):
        pytest.skip("the lab embeds no text as the release does")
    ungated("rope-deltas")
    cell = solo_scenarios.worst(model, probe.two_turns(model))
    assert cell.verdict == "green", cell.detail


OFFSET, DELTA, LENGTH = 6, -2, 4
TEXT = mx.arange(OFFSET + LENGTH)[None]
# The positions of a text with an image of two positions fewer than tokens.
WHOLE = mx.concatenate([mx.minimum(TEXT[:, :OFFSET], 3), TEXT[:, OFFSET:] + DELTA], axis=1)


def feed_next_chunk(positions, start=OFFSET, length=LENGTH, held=None, text=None, **passed):
    cache = SimpleNamespace()
    row_record.update_record(cache, deltas=mx.array([[DELTA]]))
    model = SimpleNamespace(_position_ids=held)
    own = {"position_ids": positions, "rope_deltas": mx.array([[0]])} | passed
    ids, waiting = mx.zeros((1, length), mx.int32), image_prompts.Waiting()
    if text is not None:
        waiting.note_text(text, held)
    feed = turns.Feed(model, waiting, cache, SimpleNamespace(offset=start), ids)
    return turns.next_chunk(feed, own), cache


@pytest.mark.parametrize("length", [LENGTH, 3])
def test_new_turn_positions_continue(length):
    (places, after, kept), cache = feed_next_chunk(mx.arange(LENGTH)[None], length=length)
    assert places.tolist() == WHOLE[:, OFFSET : OFFSET + length].tolist()
    assert after.item() == kept.item() == DELTA
    assert bool(row_record.read_record(cache).turn) is (length < LENGTH)


def test_chunked_turn_keeps_first_delta():
    image = mx.array([[0, 1, 1, 1, 2]])
    passed = {"position_ids": image, "rope_deltas": mx.array([[-2]])}
    (first, after, kept), cache = feed_next_chunk(image, length=2, **passed)
    assert (first.tolist(), after.item(), kept.item()) == ([[4, 5]], 2 * DELTA, DELTA)
    counting = SimpleNamespace(offset=OFFSET + 2)
    ids, waiting = mx.zeros((1, 3), mx.int32), image_prompts.Waiting()
    last = turns.next_chunk(turns.Feed(SimpleNamespace(), waiting, cache, counting, ids), passed)
    assert (last.position_ids.tolist(), last.kept.item()) == ([[5, 5, 6]], 2 * DELTA)
    assert row_record.read_record(cache).turn is None


def test_conversation_positions_are_cut():
    expected = WHOLE[:, OFFSET:].tolist()
    chunk, _ = feed_next_chunk(WHOLE)
    assert chunk.position_ids.tolist() == expected
    # A host may pass the turn's positions, or those without the image.
    for passed in (TEXT[:, :LENGTH], TEXT):
        chunk, _ = feed_next_chunk(passed, held=WHOLE, text=mx.zeros_like(WHOLE))
        assert (chunk.position_ids.tolist(), chunk.kept.tolist()) == (expected, [[DELTA]])


def test_foreign_positions_are_not_cut():
    """The model keeps the newest request's positions, which may have the same length."""
    expected = [feed_next_chunk(TEXT[:, :LENGTH])[0].position_ids.tolist()]
    for text in (None, mx.ones_like(WHOLE)):
        chunk, _ = feed_next_chunk(TEXT[:, :LENGTH], held=WHOLE + 5, text=text)
        expected.append(chunk.position_ids.tolist())
    assert expected[1:] == expected[:1] * 2


def test_chunk_positions_are_unchanged():
    own = WHOLE[:, OFFSET:]
    assert feed_next_chunk(own)[0].position_ids is own
    step = mx.array([[0]])  # a decode step is not read from the device
    assert feed_next_chunk(step, length=1)[0].position_ids is step
    assert feed_next_chunk(own, start=mx.array([OFFSET]))[0].position_ids is own


# A chunked prompt while the model keeps another request's positions and deltas.
AMONG_OTHERS = (
    "mlx-vlm:qwen3_omni_moe prefill_step_size=8 prefill_batch_size=2; add row=9 length=1 tokens=1; "
    "add row=10 length=17 tokens=1; add row=11 length=16 tokens=1 images=1",
    "mlx-vlm:qwen3_5 prefill_step_size=4 prefill_batch_size=1; add row=6 length=1 tokens=2; "
    "add row=10 text=2 length=1 tokens=2 images=1",
    "mlx-vlm:qwen3_5 prefill_batch_size=1 prefix=1; add row=18 text=1 length=16 tokens=1 images=1; "
    "add row=19 text=1 length=22 tokens=1",
)


@pytest.mark.parametrize("line", AMONG_OTHERS)
@or_skip()
def test_chunked_prompt_beside_others(line, ungated):
    model = build_or_skip(line.split()[0])
    ungated("rope-deltas")
    assert walk.run(model, program.parse(line)) == []


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
def test_only_failing_calls_get_zero_delta(stored, rows, given, replaced):
    deltas = mx.ones((stored, 1), mx.int32) if stored else None
    model = SimpleNamespace(_rope_deltas=deltas)
    inputs = mx.zeros((rows, 4))
    assert minicpm.has_too_few(model, inputs, **given) == replaced
    if replaced:
        assert minicpm.call_with_one(lambda *_, **kwargs: kwargs, model, inputs) == {}
        assert model._rope_deltas.tolist() == [[0]]
