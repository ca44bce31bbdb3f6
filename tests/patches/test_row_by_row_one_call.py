"""Families whose batch ``row-by-row`` feeds in one call: calls, device reads, rows, and bits."""

import contextlib
from collections.abc import Iterator

import mlx.core as mx
import pytest

from mlx_patches.core.manager import Manager
from mlx_patches.lab import LabModel, engine
from mlx_patches.patches.models.row_by_row import offsets
from mlx_patches.patches.models.row_by_row import patch as row_by_row
from mlx_patches.probes import NotApplicable

from ..releases.models import build_or_skip
from .rows import assert_close_in_scale, no_reads, pad_left

ROWS = 8
PROMPTS = [[1 + (7 * row + 3 * place) % 40 for place in range(3 + row)] for row in range(ROWS)]
PADDING, TABLE = pad_left(PROMPTS)
STEPS = [[5 + step] * ROWS for step in range(12)]
# falcon_ocr up to mlx-vlm 0.4.4 keeps one row's delta for all rows.
OLD = "_rope_delta"

# Patches of other defects that some of these families have.
OTHERS = (
    "offset-alias",
    "rotating-max-size",
    "mask-from-cache-list",
    "chunked-front",
    "mllama-text",
)


def name_families() -> list[str]:
    """The families whose decode step is one call, as ``mlx-lm:afm7``."""
    one_call = [
        f"mlx-vlm:{family}"
        for family, factory in row_by_row.FACTORIES.items()
        if factory is not row_by_row.call_per_row
    ]
    return ["mlx-lm:afm7", *one_call]


@pytest.fixture
def manager(ungated) -> Manager:
    return ungated("row-by-row")


@pytest.fixture(params=name_families())
def model(request, manager: Manager, beside) -> Iterator[LabModel]:
    model = build_or_skip(request.param)
    if model.family.name == "falcon_ocr" and hasattr(model.module, OLD):
        pytest.skip("its rows go one by one in this release")
    beside(*OTHERS)
    engine.forget(model)
    yield model
    assert not manager.withdrawn
    assert not manager.failures


def step(model: LabModel, cache: list, number: int) -> object:
    return model.call([[token] for token in STEPS[number]], cache)


def test_prompt_and_step_are_one_call(model, calls):
    """And read no device."""
    cache = engine.batch_cache(model, PADDING)
    with no_reads():
        outputs = model.call(TABLE, cache)
    mx.eval(outputs)
    assert calls == [ROWS]
    calls.clear()
    for number in range(3):
        with no_reads():
            outputs = step(model, cache, number)
        mx.eval(outputs)
    assert calls == [ROWS] * 3


def test_rows_equal_solo(model):
    """With prompts of unequal length, and beyond the ends of windows and chunks."""
    cache = engine.batch_cache(model, PADDING)
    outputs = [model.call(TABLE, cache)[:, -1]]
    outputs += [step(model, cache, number)[:, -1] for number in range(len(STEPS))]
    for row, prompt in enumerate(PROMPTS):
        own = model.make_cache()
        engine.forget(model)
        solo = [model.call([prompt], own)[0, -1]]
        solo += [model.call([[tokens[row]]], own)[0, -1] for tokens in STEPS]
        for batch, expected in zip(outputs, solo, strict=True):
            assert_close_in_scale(batch[row], expected)


def test_joining_row_equals_solo(model):
    """The joining row's columns differ from its positions."""
    caches = []
    for prompt in PROMPTS[:2]:
        caches.append(model.make_cache())
        engine.forget(model)
        mx.eval(model.call([prompt], caches[-1]))
    try:
        first, second = (engine.merge(model, [cache]) for cache in caches)
    except NotApplicable as reason:
        pytest.skip(str(reason))
    for number in range(5):
        mx.eval(model.call([STEPS[number][:1]], first))
    for mine, other in zip(first, second, strict=True):
        mine.extend(other)
    outputs = model.call([STEPS[5][:1], STEPS[5][:1]], first)[:, -1]
    for row, fed in enumerate(([tokens[0] for tokens in STEPS[:6]], [STEPS[5][0]])):
        own = model.make_cache()
        engine.forget(model)
        model.call([PROMPTS[row]], own)
        for token in fed:
            expected = model.call([[token]], own)[0, -1]
        assert_close_in_scale(outputs[row], expected)


@pytest.mark.slow
def test_solo_is_bit_identical(model, manager):
    def decode() -> list:
        engine.forget(model)
        cache = model.make_cache()
        outputs = [model.call([PROMPTS[-1]], cache)]
        return outputs + [model.call([[tokens[0]]], cache) for tokens in STEPS]

    after = decode()
    mx.eval(after)
    manager.restore()
    for one, other in zip(after, decode(), strict=True):
        assert mx.array_equal(one, other).item()


@pytest.mark.slow
def test_model_is_not_changed(model):
    """The patch replaces parts only in copies of the model."""
    before = {name: id(part) for name, part in model.module.named_modules()}
    cache = engine.batch_cache(model, PADDING)
    mx.eval(model.call(TABLE, cache))
    mx.eval(step(model, cache, 0))
    assert {name: id(part) for name, part in model.module.named_modules()} == before


def test_foreign_caches_are_left_to_release(model, manager):
    cache = engine.batch_cache(model, PADDING[:3])
    # Most releases raise here.
    with contextlib.suppress(ValueError, TypeError, IndexError, RuntimeError):
        mx.eval(model.call(TABLE[:2], cache))
    assert not manager.failures


def test_only_plain_cache_offsets_are_read():
    class Recurrent:
        pass

    assert offsets.read_offset(None) is None
    assert offsets.read_offset([]) is None
    assert offsets.read_offset([Recurrent()]) is None
