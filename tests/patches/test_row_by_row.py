import gc
import inspect
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest

from mlx_patches.lab import LabModel, engine
from mlx_patches.lab.engine import MARKS
from mlx_patches.lab.scenarios import SCENARIOS
from mlx_patches.patches._shared import row_calls
from mlx_patches.patches.models.row_by_row import hunyuan_vl, offsets
from mlx_patches.patches.models.row_by_row import patch as row_by_row

from ..releases.models import applicable, build_or_skip
from .rows import PADDING, TABLE, assert_close, compare, compare_step, logits_of, pad_left

# Prompts of the last one with a mask are fed row by row.
SOME = (
    "mlx-lm:afm7",
    "mlx-vlm:afm7",
    "mlx-vlm:mllama",
    "mlx-vlm:moondream3",
    "mlx-vlm:ernie4_5_moe_vl",
)
# These models read the shape of the token ids.
NEED_IDS = ("moondream3", "ernie4_5_moe_vl")


@pytest.fixture(params=SOME)
def model(request, ungated, beside) -> Iterator[LabModel]:
    model = build_or_skip(request.param)
    manager = ungated("row-by-row")
    # Repairs of other defects of these models' batches.
    beside("offset-alias", "mllama-text")
    yield model
    assert not manager.withdrawn


@pytest.mark.parametrize("family", ["cohere_compass", "ernie4_5_moe_vl"])
def test_chunk_of_only_padding(family, ungated, beside):
    model = build_or_skip(f"mlx-vlm:{family}")
    ungated("row-by-row")
    beside("offset-alias", "rotating-max-size", "mask-from-cache-list")
    cell = applicable(SCENARIOS["chunked-batch"](model))
    assert cell.verdict == "green", cell.detail


def test_batch_features_are_left_to_release():
    class Layer:
        offset = mx.array([1, 2])

    seen = []

    def call(model, inputs, cache=None, **kwargs):
        seen.append(inputs.shape)
        return "whole"

    whole = row_by_row.call_per_row(call)
    tokens = mx.zeros((2, 3), mx.int32)
    given = {row_by_row.FEATURES: [mx.zeros((4, 8))]}
    assert whole(None, tokens, cache=[Layer()], **given) == "whole"
    assert seen == [(2, 3)]


@pytest.mark.slow
def test_memory_without_garbage_collector(model):
    cache = engine.batch_cache(model, PADDING)
    mx.eval(model.call(TABLE, cache))
    live = []
    gc.collect()
    gc.disable()
    try:
        for _ in range(50):
            mx.eval(model.call([[1], [2]], cache))  # engines evaluate the logits, not the caches
            live.append(mx.get_active_memory())
    finally:
        gc.enable()
    # The batch's own buffers grow by 256 tokens at a time, so not in these 50 steps. The margin is
    # for small arrays; leaked copies of one row are at least half a megabyte a step.
    assert max(live) - live[0] <= 64 * 1024


@pytest.mark.slow
def test_caches_are_freed_without_garbage_collector(model):
    rows = type(model.make_cache()[0])
    cache = engine.batch_cache(model, PADDING)
    gc.collect()
    gc.disable()
    try:
        before = sum(isinstance(one, rows) for one in gc.get_objects())
        for _ in range(3):
            mx.eval(model.call([[1], [2]], cache))
        assert sum(isinstance(one, rows) for one in gc.get_objects()) == before
    finally:
        gc.enable()


def test_arguments_of_hosts(model):
    names = list(inspect.signature(type(model.module).__call__).parameters)
    before = [None] * (names.index("cache") - 2)
    out = model.module(mx.array(TABLE), *before, engine.batch_cache(model, PADDING))
    compare(logits_of(out), model)
    tokens = mx.array(TABLE[:1])
    expected = inspect.unwrap(type(model.module).__call__)(model.module, tokens)
    for out in (model.module(tokens), model.module(tokens, cache=None)):
        assert mx.array_equal(logits_of(out), logits_of(expected)).item()

    parameters = inspect.signature(type(model.module).__call__).parameters.values()
    if not any(one.kind is one.VAR_KEYWORD for one in parameters):
        with pytest.raises(TypeError):
            model.module(mx.array(TABLE), cache=engine.batch_cache(model, PADDING), unknown=1)
        return
    compare(model.call(TABLE, engine.batch_cache(model, PADDING), unknown=object(), n=3), model)


def test_embeddings_instead_of_ids(model):
    if "inputs_embeds" not in inspect.signature(type(model.module).__call__).parameters:
        pytest.skip("it takes none")
    inner = model.module.model
    embed = next(getattr(inner, n) for n in ("embed_tokens", "embedding", "wte") if n in inner)
    embeddings = embed(mx.array(TABLE))
    for ids in (mx.array(TABLE), None):
        if ids is None and model.family.name in NEED_IDS:
            continue
        out = model.module(ids, inputs_embeds=embeddings, cache=engine.batch_cache(model, PADDING))
        compare(logits_of(out), model)


def test_batch_mask(model):
    if "mask" not in inspect.signature(type(model.module).__call__).parameters:
        pytest.skip("it takes none")
    cache = engine.batch_cache(model, PADDING)
    compare(model.call(TABLE, cache, mask=cache[0].make_mask(len(TABLE[0]))), model)
    # With a history, the batch's mask has a column for each key of the batch.
    compare_step(model.call([[1], [2]], cache, mask=cache[0].make_mask(1)), model)


def test_no_tokens(model):
    """These releases refuse a call without tokens; the batch's caches do not change."""
    cache = engine.batch_cache(model, PADDING)
    model.call(TABLE, cache)
    with pytest.raises(ValueError, match="empty array"):
        mx.eval(model.call(mx.zeros((1, 0), mx.int32), model.make_cache()))
    with pytest.raises((ValueError, TypeError)):
        mx.eval(model.call(mx.zeros((2, 0), mx.int32), cache))
    compare_step(model.call([[1], [2]], cache), model)


def test_host_cache_subclasses(model):
    cache = engine.batch_cache(model, PADDING)
    for layer in cache:
        layer.__class__ = type("HostCache", (type(layer),), {"__module__": __name__})
    compare(model.call(TABLE, cache), model)
    compare_step(model.call([[1], [2]], cache), model)


def test_all_outputs_are_joined(ungated):
    model = build_or_skip("mlx-vlm:mllama")
    manager = ungated("row-by-row")
    width = model.module.config.hidden_size
    states = mx.random.normal((2, 7, width), key=mx.random.key(1))
    cache = engine.batch_cache(model, PADDING)
    out = model.module(mx.array(TABLE), cache=cache, cross_attention_states=states)
    assert not manager.withdrawn
    assert out.logits.shape[:2] == (2, 5)
    assert mx.array_equal(out.cross_attention_states, states).item()


def with_image(model: LabModel, length: int, patches: int, seed: int) -> tuple[list[int], list]:
    """A prompt and the grid of the image in it; without an image if ``patches`` is 0."""
    merge = int(engine._setting(model, "spatial_merge_size"))
    image, start = (int(engine._setting(model, *names)) for names in (MARKS[:2], MARKS[2:4]))
    tokens = [1 + (seed + 5 * place) % 40 for place in range(length)]
    if not patches:
        return tokens, []
    tokens[2 : 3 + 2 * patches] = [start] + [image] * 2 * patches
    return tokens, [[1, patches * merge, 2 * merge]]


def prefill_and_decode(model: LabModel, prompts: list) -> tuple[object, list[int]]:
    """The logits of one decode step after the prompts, and the rope deltas that an engine reads."""
    padding, table = pad_left([tokens for tokens, _ in prompts])
    cache = model.make_batch_cache(padding) if len(prompts) > 1 else model.make_cache()
    engine.forget(model)
    grids = [grid[0] for _, grid in prompts if grid]
    kwargs = {"image_grid_thw": mx.array(grids)} if grids else {}
    model.call(table, cache, **kwargs)
    deltas = engine.capture_deltas(model, [0] * len(prompts))
    kwargs = {"rope_deltas": mx.array(deltas)[:, None]} if engine._capture(model) else {}
    return model.call([[5]] * len(prompts), cache, **kwargs)[:, -1], deltas


@pytest.mark.parametrize("order", [(0, 1), (1, 0), (0, 2), (2, 0)])
def test_row_decodes_with_own_delta(order, ungated, beside):
    model = build_or_skip("mlx-vlm:ernie4_5_moe_vl")
    manager = ungated("row-by-row")
    engine._mark(model)
    made = [with_image(model, *of) for of in ((11, 3, 7), (9, 2, 14), (7, 0, 21))]
    prompts = [made[index] for index in order]
    beside("offset-alias", "mask-from-cache-list")
    output, deltas = prefill_and_decode(model, prompts)
    for row, prompt in enumerate(prompts):
        solo, (own,) = prefill_and_decode(model, [prompt])
        assert deltas[row] == own
        assert_close(output[row], solo[0])
    assert not manager.withdrawn


def test_deltas_are_joined():
    before = mx.array([[4], [5], [6]])
    joined = row_by_row.join_deltas([mx.array([[7]]), None, mx.array([[8]])], before)
    assert joined.tolist() == [[7], [5], [8]]
    assert row_by_row.join_deltas([None, mx.array(9)], None).tolist() == [[0], [9]]
    assert row_by_row.join_deltas([None, mx.array([9])], before[:2]).tolist() == [4, 9]


@pytest.mark.parametrize(("before", "after"), [(None, None), ("image", "image")])
def test_prompt_positions_are_not_reused(before, after):
    """Hunyuan VL stores them on the model; the next prompt crashed or used them."""

    def call(model):
        model._position_ids = model._position_ids or "computed"
        return model._position_ids

    model = SimpleNamespace(_position_ids=before)
    assert hunyuan_vl.forget_computed(call)(model) == (before or "computed")
    assert model._position_ids == after


def rows_fed_with_their_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_parts(layer: Any, shape: tuple[int, int]) -> list[row_calls.RowPart]:
        return [row_calls.RowPart(row, shape, (0, shape[1])) for row in range(shape[0])]

    monkeypatch.setattr(row_by_row, "find_parts", find_parts)
    monkeypatch.setattr(offsets, "read_offset", lambda cache: None)


MUTANTS = {"row-by-row": rows_fed_with_their_padding}
