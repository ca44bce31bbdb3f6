from collections.abc import Iterator, Sequence
from typing import Any

import mlx.core as mx
import pytest

from mlx_patches.lab import LabModel, engine
from mlx_patches.patches.models.row_by_row import falcon_ocr

from ..releases.models import build_or_skip
from .rows import assert_close_in_scale as check
from .rows import no_reads, pad_left

pytest.importorskip("mlx_vlm")

TEXTS = ([5, 9, 2, 7, 3], [8, 6], [4, 11, 13, 1])
DELTAS = [-3, 0, -1]
# (height, width) in patches, and the numbers of tokens before and after the image.
IMAGES = (((2, 2), 2, 3), ((1, 2), 0, 1), ((2, 3), 1, 2))
STEPS = ([12, 3, 8], [2, 30, 7], [21, 4, 4])


@pytest.fixture
def model(ungated, beside) -> Iterator[LabModel]:
    built = build_or_skip("mlx-vlm:falcon_ocr")
    if not hasattr(built.module, falcon_ocr.DELTAS):
        pytest.skip("its rows go one by one in this release")
    manager = ungated("row-by-row")
    beside("offset-alias")
    engine.forget(built)
    yield built
    assert not manager.withdrawn
    assert not manager.failures


def embed_table(model: LabModel, table: Sequence[Sequence[int]]) -> Any:
    """Embeddings of token ids; those of special tokens are beyond the tiny model's vocabulary."""
    return model.module.model.embed_tokens(mx.array(table) % model.module.args.vocab_size)


def with_history(model: LabModel) -> list[list[Any]]:
    caches = [model.make_cache() for _ in TEXTS]
    for cache, text in zip(caches, TEXTS, strict=True):
        mx.eval(model.call([text], cache))
    return caches


@pytest.mark.parametrize("embeddings", [False, True])
def test_text_equals_solo(model, calls, embeddings):
    """At every position, and with the deltas that another request left on the model."""
    padding, table = pad_left(TEXTS)
    model.module._rope_deltas = mx.array([[-2]])

    def embed_inputs(rows: list[list[int]]) -> dict[str, Any]:
        return {"inputs_embeds": embed_table(model, rows)} if embeddings else {}

    output = model.call(table, engine.batch_cache(model, padding), **embed_inputs(table))
    assert calls == [len(TEXTS)]
    for row, text in enumerate(TEXTS):
        solo = model.call([text], model.make_cache(), **embed_inputs([text]))[0]
        check(output[row, padding[row] :], solo)


def test_single_row_batch_equals_solo(model, calls):
    cache = engine.batch_cache(model, [2])
    with no_reads():
        output = model.call([[0, 0, *TEXTS[0]]], cache)
    assert calls == [1]
    check(output[0, 2:], model.call([TEXTS[0]], model.make_cache())[0])


@pytest.mark.parametrize("embeddings", [False, True])
def test_second_prompt_equals_solo(model, calls, embeddings):
    second = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    solo = []
    for row, cache in enumerate(with_history(model)):
        more = {"inputs_embeds": embed_table(model, second[row : row + 1])} if embeddings else {}
        own = {"rope_deltas": mx.array([[DELTAS[row]]]), **more}
        solo.append(model.call([second[row]], cache, **own)[0])
    batch = engine.merge(model, with_history(model))
    deltas = mx.array(DELTAS)[:, None]
    calls.clear()
    more = {"inputs_embeds": embed_table(model, second)} if embeddings else {}
    output = model.call(second, batch, rope_deltas=deltas, **more)
    assert calls == [len(TEXTS)]
    assert model.module._rope_deltas is deltas
    for row, own in enumerate(solo):
        check(output[row], own)


def test_deltas_left_on_the_model(model):
    padding, table = pad_left(TEXTS)
    model.call(table, engine.batch_cache(model, padding))
    assert model.module._rope_deltas is None
    # The engine of 0.5.0 reads them there.
    padding, whole = join_prompts([with_image(model, *image) for image in IMAGES])
    feed(model, whole, engine.batch_cache(model, padding))
    assert model.module._rope_deltas is whole["rope_deltas"]


def with_image(model: LabModel, grid: tuple[int, int], before: int, after: int) -> dict[str, Any]:
    """A prompt with an image, as the release's own embedding step returns it."""
    config = model.module.config
    image = [config.image_cls_token_id, *[config.img_id] * (grid[0] * grid[1]), config.img_end_id]
    ids = [*range(1, 1 + before), *image, *range(20, 20 + after)]
    positions, places, delta, mask = model.module.get_rope_index(mx.array([ids]), [grid])
    return {
        "ids": ids,
        "inputs_embeds": embed_table(model, [ids]),
        "position_ids": positions[None],
        "pos_hw": places,
        "rope_deltas": mx.array([[delta]]),
        "attention_mask_4d": mask,
    }


def join_prompts(prompts: Sequence[dict[str, Any]], hidden: bool = False) -> tuple[list[int], dict]:
    """Each row's padding, and the prompts as one left-padded batch.

    Args:
        prompts: results of ``with_image``.
        hidden: whether the mask itself hides padding.
    """
    padding, table = pad_left([one["ids"] for one in prompts])
    whole: dict[str, Any] = {"ids": table}
    for name in prompts[0]:
        if name == "ids":
            continue
        rows = [one[name] for one in prompts]
        if name == "attention_mask_4d":
            sides = [[(0, 0), (0, 0), (pad, 0), (pad, 0)] for pad in padding]
            rows = [
                mx.pad(row.astype(mx.int32), side, constant_values=int(not hidden)).astype(mx.bool_)
                for row, side in zip(rows, sides, strict=True)
            ]
        elif name != "rope_deltas":
            rows = [
                mx.pad(row, [(0, 0), (pad, 0), *[(0, 0)] * (row.ndim - 2)])
                for row, pad in zip(rows, padding, strict=True)
            ]
        whole[name] = mx.concatenate(rows)
    return padding, whole


def feed(model: LabModel, prompt: dict[str, Any], cache: list[Any], **more: Any) -> Any:
    embed_inputs = {name: value for name, value in prompt.items() if name != "ids"}
    ids = prompt["ids"]
    return model.call(ids if isinstance(ids[0], list) else [ids], cache, **{**embed_inputs, **more})


@pytest.mark.parametrize("hidden", [False, True])
def test_images_equal_solo(model, calls, hidden):
    """In unequal rows, whether the mask hides padding or not, and in the steps after them."""
    prompts = [with_image(model, *image) for image in IMAGES]
    padding, whole = join_prompts(prompts, hidden)
    batch = engine.batch_cache(model, padding)
    with no_reads():
        output = feed(model, whole, batch)
    assert calls == [len(IMAGES)]
    steps = [
        model.call([[token] for token in tokens], batch, rope_deltas=whole["rope_deltas"])
        for tokens in STEPS
    ]
    for row, prompt in enumerate(prompts):
        own = model.make_cache()
        check(output[row, padding[row] :], feed(model, prompt, own)[0])
        for step, tokens in zip(steps, STEPS, strict=True):
            solo = model.call([[tokens[row]]], own, rope_deltas=prompt["rope_deltas"])
            check(step[row], solo[0])


@pytest.mark.parametrize("name", ["position_ids", "pos_hw", "attention_mask_4d", "inputs_embeds"])
def test_shared_arguments_go_row_by_row(model, calls, name):
    """Two equal prompts that share one row of an argument, or have no embeddings."""
    _, whole = join_prompts([with_image(model, *IMAGES[0])] * 2)
    if name == "inputs_embeds":
        whole["ids"] = [[one % model.module.args.vocab_size for one in row] for row in whole["ids"]]
        del whole[name]
    else:
        whole[name] = whole[name][:1]
    mx.eval(feed(model, whole, engine.batch_cache(model, [0, 0])))
    assert calls == [1, 1]


def test_host_mask_goes_row_by_row(model, calls):
    padding, table = pad_left(TEXTS)
    cache = engine.batch_cache(model, padding)
    mask = cache[0].make_mask(len(table[0]))
    mx.eval(model.call(table, cache, mask=mask))
    assert calls == [1] * len(TEXTS)


def test_additive_mask_goes_row_by_row(model, calls):
    padding, whole = join_prompts([with_image(model, *image) for image in IMAGES], hidden=True)
    whole["attention_mask_4d"] = mx.where(whole["attention_mask_4d"], 0.0, -1e9)
    mx.eval(feed(model, whole, engine.batch_cache(model, padding)))
    assert calls == [1] * len(IMAGES)
