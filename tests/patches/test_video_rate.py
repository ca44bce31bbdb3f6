import importlib
from types import SimpleNamespace

import mlx.core as mx
import mlx.nn as nn
import pytest

from mlx_patches.patches.positions.video_rate import patch
from mlx_patches.patches.positions.video_rate.patch import NAME
from mlx_patches.patches.positions.video_rate.probe import (
    FRAMES,
    IMAGE,
    PER_SECOND,
    Qwen2_5_VLProcessor,
    count_positions,
    embed,
    make_model,
    make_omni,
    make_prompt,
    process,
)
from mlx_patches.probes.kit import require_module

from ..releases.models import or_skip

TALL, LONG, IMAGE_GRID = (2, 12, 4), (7, 4, 6), (1, 4, 6)


@pytest.fixture
def model():
    with or_skip():
        return make_model()


def steps_of(rates):
    return [PER_SECOND * FRAMES / rate for rate in rates]


def embed_videos(model, rows, grids, rates, mask=None):
    inputs = process(grids, rates) if grids else {}
    return embed(model, mx.array(rows), inputs, mask)


def pad_left(rows):
    longest = max(map(len, rows))
    masks = [[0] * (longest - len(row)) + [1] * len(row) for row in rows]
    return [[3] * (longest - len(row)) + row for row in rows], mx.array(masks)


@pytest.mark.parametrize("grid", [TALL, LONG], ids=["tall", "long"])
@pytest.mark.parametrize("rate", [0.5, 1.0, 2.0, 2.7, 4.0, 24.0])
def test_positions_follow_rate(rate, grid, model, ungated):
    ungated("video-rate")
    tokens = make_prompt(grid)
    positions, deltas = embed_videos(model, [tokens], [grid], [rate])
    expected = count_positions(tokens, [grid], steps_of([rate]))
    assert positions[:, 0].tolist() == expected
    assert deltas.item() == max(map(max, expected)) + 1 - len(tokens)


def test_videos_of_one_prompt_have_own_rates(model, ungated):
    tokens, grids = make_prompt(TALL, LONG), [TALL, LONG]
    released, _ = embed_videos(model, [tokens], grids, [4.0, 4.0])
    if released[:, 0].tolist() != count_positions(tokens, grids, [1, 1]):
        pytest.skip("this release finds one video per prompt")
    ungated("video-rate")
    positions, _ = embed_videos(model, [tokens], grids, [1.0, 3.0])
    assert positions[:, 0].tolist() == count_positions(tokens, grids, steps_of([1.0, 3.0]))


def test_rows_of_a_batch_have_own_rates(model, ungated):
    ungated("video-rate")
    texts = [make_prompt(TALL), make_prompt(), make_prompt(LONG)]
    own = [([TALL], [1.0]), ([], []), ([LONG], [3.0])]
    rows, mask = pad_left(texts)
    positions, deltas = embed_videos(model, rows, [TALL, LONG], [1.0, 3.0], mask)
    for row, (tokens, (grids, rates)) in enumerate(zip(texts, own, strict=True)):
        expected = count_positions(tokens, grids, steps_of(rates))
        kept = positions[:, row, len(rows[0]) - len(tokens) :]
        assert (kept - kept[:, :1]).tolist() == expected
        if deltas.size == len(rows):
            # Older releases count the padding in the delta.
            ends = [max(map(max, expected)) + 1 - len(text) for text in (tokens, rows[0])]
            assert deltas[row].item() in ends


def test_video_without_rate_has_a_grid_per_second(model, ungated):
    ungated("video-rate")
    tokens = make_prompt(LONG)
    embed_videos(model, [tokens], [LONG], [1.0])  # leaves no rate behind
    positions, _ = embed(model, mx.array([tokens]), {"video_grid_thw": mx.array([LONG])})
    assert positions[:, 0].tolist() == count_positions(tokens, [LONG], [PER_SECOND])


@pytest.mark.parametrize("grids", [[], [IMAGE_GRID]], ids=["text", "image"])
def test_other_prompts_are_unchanged(grids, model, ungated):
    rows, mask = pad_left([make_prompt(*grids, token=IMAGE), make_prompt()])
    given = mx.array(rows), mx.array(grids) if grids else None, None, mask
    released = model.language_model.get_rope_index(*given)
    ungated("video-rate")
    again = model.language_model.get_rope_index(*given)
    assert all(map(mx.array_equal, released, again))


def test_other_inputs_get_no_seconds(model, ungated):
    ungated("video-rate")
    process_inputs = importlib.import_module("mlx_vlm.utils").process_inputs
    videos = {"videos": [LONG], "fps": [2.0]}
    other = type("Other", (Qwen2_5_VLProcessor,), {})
    assert NAME in process_inputs(Qwen2_5_VLProcessor(), "a", **videos)
    assert NAME not in process_inputs(other(), "a", **videos)
    image = process_inputs(Qwen2_5_VLProcessor(), "a", images=["an image"], fps=2.0)
    assert NAME not in image


@pytest.mark.parametrize("rate", [2.0, 4.0, 0.7])
def test_omni_positions_have_fractions(rate, ungated):
    with or_skip():
        language = make_omni()
    ungated("video-rate")
    tokens, seconds = make_prompt(LONG, TALL), mx.array([FRAMES / rate, FRAMES])
    index = lambda *_, **__: language.get_rope_index(  # noqa: E731
        mx.array([tokens]), None, mx.array([LONG, TALL])
    )
    positions, deltas = patch.keep_seconds(index, video_second_per_grid=seconds)
    assert deltas.item() == pytest.approx(positions.max().item() + 1 - len(tokens), abs=1e-4)
    times = sorted({one - positions[0, 0, 3].item() for one in positions[0, 0, 3:45].tolist()})
    assert times == pytest.approx([grid * 13 * FRAMES / rate for grid in range(7)], rel=1e-4)


def test_omni_seconds_reach_the_positions(ungated):
    place = "mlx_vlm.models.qwen3_omni_moe.qwen3_omni_moe"
    with or_skip():
        language, kind = make_omni(), require_module(place).Model
    model = kind.__new__(kind)
    nn.Module.__init__(model)
    index = lambda *_, **__: language.get_rope_index(ids, None, grids)  # noqa: E731
    model.thinker = SimpleNamespace(get_input_embeddings=index)
    ungated("video-rate")
    ids, grids = mx.array([make_prompt(LONG)]), mx.array([LONG])
    positions, _ = model.get_input_embeddings(ids, video_second_per_grid=mx.array([0.5]))
    assert (positions[0, 0, 44] - positions[0, 0, 3]).item() == 6 * 13 * 0.5


def test_omni_processor_gets_seconds(ungated):
    with or_skip():
        make_omni()
    ungated("video-rate")
    kind = type("Qwen3OmniMoeProcessor", (Qwen2_5_VLProcessor,), {})
    run = importlib.import_module("mlx_vlm.utils").process_inputs
    inputs = run(kind(), "a", videos=[LONG, TALL], fps=[2.0, 0.5])
    assert inputs[patch.OMNI].tolist() == [1.0, 4.0]


def test_positions_behind_a_cached_prefix(model, ungated):
    places = ("mlx_vlm.generate", "mlx_vlm.generate.dispatch")
    ungated("video-rate")
    for place in places:
        try:
            module = importlib.import_module(place)
        except ImportError:
            continue
        prime = getattr(module, "_prime_cached_prefix_rope_state", None)
        if prime is not None:
            break
    else:
        pytest.skip("this release computes no positions for a cached prefix")
    tokens, kwargs = make_prompt(LONG), process([LONG], [1.0])
    language = model.language_model
    language._rope_deltas = language._position_ids = None
    assert prime(model, mx.array([tokens]), None, kwargs)
    expected = count_positions(tokens, [LONG], steps_of([1.0]))
    assert language._position_ids[:, 0].tolist() == expected
