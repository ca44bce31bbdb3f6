from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest

from mlx_patches.lab import Generated, LabModel, engine, generators
from mlx_patches.patches.models.row_by_row import cohere_compass, hunyuan_vl

from ..releases.models import build_or_skip, or_skip
from .rows import TOLERANCE, assert_close_in_scale, no_reads, pad_left

pytest.importorskip("mlx_vlm")

FAMILIES = ("cohere_compass", "ernie4_5_moe_vl", "hunyuan_vl")
TEXTS = ([5, 9, 2, 7, 3], [8, 6], [4, 11, 13, 1])
LONGEST = max(map(len, TEXTS))
EQUAL = [[1 + (3 * row + place) % 20 for place in range(LONGEST)] for row in range(len(TEXTS))]
PADDING, TABLE = pad_left(TEXTS)
STEPS = ([12, 3, 8], [2, 30, 7], [21, 4, 4])
# An engine's other arguments for a text of Cohere Compass with embeddings.
SHOWN = mx.array([[0] * pad + [1] * (LONGEST - pad) for pad in PADDING])


@pytest.fixture(params=FAMILIES)
def model(request, ungated, beside) -> Iterator[LabModel]:
    built = build_or_skip(f"mlx-vlm:{request.param}")
    manager = ungated("row-by-row")
    beside("offset-alias", "rotating-max-size", "mask-from-cache-list", "extend-solo-batch")
    engine.forget(built)
    yield built
    engine.forget(built)
    engine.unmark()
    assert not manager.withdrawn
    assert not manager.failures


def embed_table(model: LabModel, table: list[list[int]]) -> Any:
    """Embeddings of token ids; 0 for padding, as an engine makes it."""
    ids, weights = mx.array(table), model.module.model.embed_tokens
    # An image's token is beyond the tiny model's vocabulary.
    return weights(ids % weights.weight.shape[0]) * (ids > 0)[..., None]


def feed(model: LabModel, table: list[list[int]], cache: list[Any], **more: Any) -> Any:
    return model.call(table, cache, inputs_embeds=embed_table(model, table), **more)


def with_mask(model: LabModel, mask: Any) -> dict[str, Any]:
    """The engine's other arguments for a text with embeddings."""
    return {cohere_compass.PADDING: mask} if model.family.name == "cohere_compass" else {}


def check(output: Any, solo: Any) -> None:
    last = min(output.shape[0], solo.shape[0])
    assert_close_in_scale(output[-last:], solo[-last:])


def check_rows(model: LabModel, output: Any, steps: list[Any]) -> None:
    for row, text in enumerate(TEXTS):
        own = model.make_cache()
        engine.forget(model)
        check(output[row][-len(text) :], feed(model, [text], own)[0])
        for step, tokens in zip(steps, STEPS, strict=True):
            check(step[row], model.call([[tokens[row]]], own)[0])


def take_steps(model: LabModel, batch: list[Any]) -> list[Any]:
    return [model.call([[token] for token in tokens], batch)[:, -1:] for tokens in STEPS]


@pytest.mark.parametrize("masked", [False, True])
def test_text_equals_solo(model, calls, masked):
    """Unequal rows and the next steps; no device reads."""
    more = with_mask(model, SHOWN) if masked else {}
    batch = engine.batch_cache(model, PADDING)
    with no_reads():
        output = feed(model, TABLE, batch, **more)
    assert calls == [len(TEXTS)]
    check_rows(model, output, take_steps(model, batch))


def test_chunked_text_equals_solo(model, calls):
    """The second row begins with the second chunk; the last chunk is one token."""
    batch = engine.batch_cache(model, PADDING)
    ends = [(0, 3), (3, 4), (4, 5)]
    with no_reads():
        output = [
            feed(
                model,
                [row[start:stop] for row in TABLE],
                batch,
                n_to_process=stop - start,
                **with_mask(model, SHOWN[:, start:stop]),
            )
            for start, stop in ends
        ]
    assert calls == [len(TEXTS)] * len(ends)
    check_rows(model, output[-1][:, -1:], take_steps(model, batch))


def test_second_text_equals_solo(model, calls):
    second = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    histories, solo = [], []
    for text, more in zip(TEXTS, second, strict=True):
        for kept in (histories, solo):
            engine.forget(model)
            cache = model.make_cache()
            mx.eval(feed(model, [text], cache))
            kept.append(cache if kept is histories else feed(model, [more], cache)[0])
    batch = engine.merge(model, histories)
    engine.forget(model)
    calls.clear()
    output = feed(model, second, batch)
    assert calls == [len(TEXTS)]
    for row, own in enumerate(solo):
        check(output[row], own)


def test_single_row_batch_equals_solo(model, calls):
    output = feed(model, [[0, 0, *TEXTS[0]]], engine.batch_cache(model, [2]))
    assert calls == [1]
    engine.forget(model)
    check(output[0, 2:], feed(model, [TEXTS[0]], model.make_cache())[0])


def test_single_token_texts_have_no_deltas(model):
    """Another request left its own on the model."""
    if not hasattr(model.module, "_rope_deltas"):
        pytest.skip("the model keeps none")
    model.module._rope_deltas = mx.array([[-2], [-2], [-2]])
    one = [text[:1] for text in TEXTS]
    batch = engine.batch_cache(model, [0] * len(TEXTS))
    output = feed(model, one, batch)
    second = model.call([[token] for token in STEPS[0]], batch)
    for row, text in enumerate(one):
        own = model.make_cache()
        check(output[row], feed(model, [text], own)[0])
        check(second[row], model.call([[STEPS[0][row]]], own)[0])


def test_foreign_deltas_are_ignored(model):
    """It decodes between the chunks of a text's prompt, with the deltas of its images."""
    if not hasattr(model.module, "_rope_deltas"):
        pytest.skip("the model keeps none")
    other, batch = (engine.batch_cache(model, PADDING) for _ in range(2))
    feed(model, TABLE, other)
    feed(model, [row[:-1] for row in TABLE], batch)
    deltas = mx.array([[-1]] * len(TEXTS))
    model.call([[token] for token in STEPS[0]], other, rope_deltas=deltas)
    output = feed(model, [row[-1:] for row in TABLE], batch)
    check_rows(model, output[:, -1:], take_steps(model, batch))


def test_host_mask_goes_row_by_row(model, calls):
    if model.family.name == "cohere_compass":
        pytest.skip("its mask covers only the tokens")
    batch = engine.batch_cache(model, PADDING)
    output = feed(model, TABLE, batch, mask=batch[0].make_mask(LONGEST))
    assert calls == [1] * len(TEXTS)
    check_rows(model, output, take_steps(model, batch))


@pytest.mark.parametrize("name", ["token_type_ids", "image_grid_thw", "position_ids"])
def test_possible_image_goes_row_by_row(model, calls, name):
    rows = len(TEXTS)
    own = mx.broadcast_to(mx.arange(LONGEST), (rows, LONGEST))
    axes = {"ernie4_5_moe_vl": mx.stack([own] * 3, -1), "hunyuan_vl": mx.stack([own] * 4, 1)}
    given = {
        "token_type_ids": mx.zeros((rows, LONGEST), mx.int32),
        "image_grid_thw": mx.array([[1, 2, 2]] * rows),
        "position_ids": axes.get(model.family.name, own),
    }
    batch = engine.batch_cache(model, [0] * rows)
    mx.eval(feed(model, EQUAL, batch, **{name: given[name]}))
    assert calls == [1] * rows


def with_image(model: LabModel, patches: tuple[int, int], after: int) -> tuple[list[int], Any]:
    config = getattr(model.module, "config", None)
    start = getattr(config, "vision_start_token_id", 3)
    token = getattr(config, "image_token_id", 4)
    vision = getattr(config, "vision_config", None)
    merged = getattr(vision, "spatial_merge_size", 1)
    height, width = patches
    ids = [1, 2, start, *[token] * (height * width), *range(20, 20 + after)]
    return ids, mx.array([[1, height * merged, width * merged]])


@pytest.mark.parametrize("images", [1, 2])
def test_images_equal_solo(model, calls, images):
    """Unequal rows and the next steps; with one image, the second row is a text."""
    prompts = [with_image(model, (2, 3), 4), with_image(model, (1, 2), 1)][:images]
    ids = [*[ids for ids, _ in prompts], list(range(30, 36))][:2]
    padding, table = pad_left(ids)
    batch = engine.batch_cache(model, padding)
    output = feed(model, table, batch, image_grid_thw=mx.concatenate([grid for _, grid in prompts]))
    assert calls == [1] * len(ids)
    steps = [model.call([[token] for token in tokens[:2]], batch)[:, -1:] for tokens in STEPS]
    for row, text in enumerate(ids):
        own = model.make_cache()
        engine.forget(model)
        more = {"image_grid_thw": prompts[row][1]} if row < images else {}
        check(output[row][-len(text) :], feed(model, [text], own, **more)[0])
        for step, tokens in zip(steps, STEPS, strict=True):
            check(step[row], model.call([[tokens[row]]], own)[0])


def with_positions(model: LabModel) -> Any:
    """Position ids of an image at the end of each row, which the model keeps for its prompt."""
    sections = len(model.module.model.layers[0].self_attn.xdrope_section)
    own = mx.broadcast_to(mx.arange(LONGEST), (len(TEXTS), sections, LONGEST))
    return mx.where(mx.arange(sections)[:, None] > 0, mx.minimum(own, 2), own)


def test_hunyuan_image_positions(model, calls):
    """An image in each row, visible only in the model's own position ids."""
    if not hasattr(model.module, hunyuan_vl.POSITIONS) or model.family.name != "hunyuan_vl":
        pytest.skip("its positions come with each call")
    own = with_positions(model)
    model.module._position_ids = own
    batch = engine.batch_cache(model, [0] * len(TEXTS))
    output = feed(model, EQUAL, batch)
    assert calls == [1] * len(TEXTS)
    steps = take_steps(model, batch)
    for row, text in enumerate(EQUAL):
        cache = model.make_cache()
        model.module._position_ids = own[row : row + 1]
        check(output[row], feed(model, [text], cache)[0])
        for step, tokens in zip(steps, STEPS, strict=True):
            check(step[row], model.call([[tokens[row]]], cache)[0])


def test_foreign_mask_goes_row_by_row(model, calls):
    if model.family.name != "cohere_compass":
        pytest.skip("its texts have no mask")
    mask = mx.ones((len(TEXTS), LONGEST + 2), mx.int32)
    mx.eval(feed(model, TABLE, engine.batch_cache(model, PADDING), attention_mask=mask))
    assert calls == [1] * len(TEXTS)


class Embedded(generators.TextOnly):
    """A language model that is called with embeddings, as an engine's requests are."""

    def __call__(self, tokens: Any, inputs_embeds: Any = None, cache: Any = None, **more: Any):
        if inputs_embeds is not None:
            more["inputs_embeds"] = embed_table(self._model, tokens.tolist())
        return SimpleNamespace(logits=self._model.call(tokens, cache, **more))


@or_skip()
def test_engine_feeds_texts_in_one_call(model, calls):
    """Its prompts of one batch, with the results of their embedding step."""
    count = 4
    generator = generators.make_generator(model, count)
    generator.release.model = Embedded(model)
    if generator.by_row:
        more = [
            {
                "inputs_embeds": mx.zeros((1, len(text), 1)),
                **with_mask(model, mx.ones((1, len(text)), mx.int32)),
            }
            for text in TEXTS
        ]
        order = list(generator.release.insert([list(text) for text in TEXTS], prompt_kwargs=more))
    else:
        order = generator.insert(TEXTS)
    found: dict[int, list[Generated]] = {uid: [] for uid in order}
    for _ in range(10 * count):
        for uid, one in generator.next():
            found[uid].append(one)
        if all(len(row) == count for row in found.values()):
            break
    assert set(calls) == {len(TEXTS)}
    # Some engines feed the last token of the prompts separately.
    assert len(calls) <= count + 2
    for text, row in zip(TEXTS, found.values(), strict=True):
        engine.forget(model)
        cache = model.make_cache()
        logits = feed(model, [text], cache)[0, -1]
        for one in row:
            assert logits.max().item() - logits[one.token].item() <= TOLERANCE
            logits = model.call([[one.token]], cache)[0, -1]
