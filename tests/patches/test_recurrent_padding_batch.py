"""Padded batches of recurrent families are fed in one call; each row has its own state."""

import math

import mlx.core as mx
import pytest

from mlx_patches.lab import LabModel, engine
from mlx_patches.patches import catalogue
from mlx_patches.patches._shared.rows import recurrent
from mlx_patches.patches.models.recurrent_padding import batch as recurrent_batch
from mlx_patches.patches.models.recurrent_padding import patch as recurrent_padding
from mlx_patches.patches.models.recurrent_padding.batch import Padding, announce_padding

from ..releases.conftest import is_installed, is_tested, verdict
from ..releases.models import build_or_skip, or_skip

PATCH = catalogue.builtin().get("recurrent-padding")
OTHERS = (
    *("offset-alias", "mask-by-offset", "mask-from-cache-list", "rope-deltas"),
    *("arrays-chunks", "kimi-states"),
)
PROMPTS = ([5, 9, 2, 7, 3, 11, 4], [8, 6, 10], [12])
LONGEST = max(map(len, PROMPTS))
PADDING = [LONGEST - len(prompt) for prompt in PROMPTS]
LEFT = [[0] * pad + prompt for pad, prompt in zip(PADDING, PROMPTS, strict=True)]
RIGHT = [prompt + [0] * pad for pad, prompt in zip(PADDING, PROMPTS, strict=True)]
TOLERANCE = 1e-3


def names() -> list[str]:
    """The families that the installed release needs the patch for, as ``mlx-lm:mamba``."""
    needed = [
        target
        for target in PATCH.targets
        if not target.supports and is_tested(target.distribution) and verdict(PATCH, target).ok
    ]
    return sorted({f"{one.distribution}:{one.module.split('.')[2]}" for one in needed})


@pytest.fixture
def repaired(beside):
    managers = []

    def prepare(name: str) -> LabModel:
        model = build_or_skip(name)
        managers.append(beside(*OTHERS, PATCH.id))
        return model

    yield prepare
    assert not any(manager.withdrawn for manager in managers)


def body_of(model: LabModel) -> object:
    module = model.module
    names = ("language_model", "model", "backbone")
    return next(module[name] for name in names if name in module)


@pytest.fixture
def calls(monkeypatch):
    seen: list[int] = []

    def count(model: LabModel) -> list[int]:
        inner = body_of(model)
        kind = type(inner)
        release = kind.__call__

        def count_rows(self, inputs, *args, **kwargs):
            if self is inner:
                seen.append(inputs.shape[0])
            return release(self, inputs, *args, **kwargs)

        monkeypatch.setattr(kind, "__call__", count_rows)
        return seen

    return count


def feeds_rows_itself(name: str) -> bool:
    """Whether the release's own model feeds the left-padded rows of a batch one by one."""
    distribution, family = name.split(":")
    if distribution != "mlx-vlm" or family not in recurrent_padding.MASK_LEFT:
        return False
    from importlib import import_module

    own = vars(import_module(f"mlx_vlm.models.{family}.language"))
    return any(one.endswith("left_padding_info") for one in own)


@or_skip()
def caches(model: LabModel, left: bool) -> list[object]:
    """The caches of a padded batch; skips if the release has none."""
    if left:
        cache = engine.batch_cache(model, PADDING)
    else:
        cache = engine.empty_batch(model, len(PROMPTS))
        engine.prepare(cache, [len(prompt) for prompt in PROMPTS])
    if len(list(recurrent(cache))) < len(list(recurrent(model.make_cache()))):
        pytest.skip("the release batches no recurrent caches")
    return cache


def skip_without_body(name):
    """Skip a family whose model calls its layers; test_recurrent_padding covers it."""
    if name.partition(":")[2] in recurrent_padding.WHOLE:
        pytest.skip("its model calls its layers itself: there is no one call of them to watch")


@pytest.mark.parametrize("left", [True, False], ids=["left", "right"])
@pytest.mark.parametrize(
    "name",
    # Slow: these compile kernels.
    [
        pytest.param(one, marks=pytest.mark.slow if one.endswith(("rwkv7", "olmo_hybrid")) else [])
        for one in names()
    ],
)
def test_padded_prompt_is_one_call(name, left, repaired, calls):
    skip_without_body(name)
    model = repaired(name)
    if feeds_rows_itself(name):
        pytest.skip("the release's own model feeds rows one by one")
    solo = []
    for prompt in PROMPTS:
        engine.forget(model)
        own = model.make_cache()
        solo.append((model.call([prompt], own)[0], [list(one.cache) for one in recurrent(own)]))
    cache = caches(model, left)
    engine.forget(model)
    seen = calls(model)
    out = model.call(LEFT if left else RIGHT, cache)
    assert seen == [len(PROMPTS)]
    for row, (prompt, pad) in enumerate(zip(PROMPTS, PADDING, strict=True)):
        start = pad if left else 0
        logits, states = solo[row]
        assert mx.abs(out[row, start : start + len(prompt)] - logits).max().item() <= TOLERANCE
        for layer, own in zip(recurrent(cache), states, strict=True):
            for held, state in zip(layer.cache, own, strict=True):
                assert same_state(held[row : row + 1], state), (row, held.shape, state.shape)


def same_state(held, state) -> bool:
    """Whether a row's state equals its solo state, which may be shorter."""
    missing = [(size - own, 0) for size, own in zip(held.shape, state.shape, strict=True)]
    return bool(mx.abs(held - mx.pad(state, missing)).max().item() <= TOLERANCE)


@pytest.mark.parametrize("name", names())
def test_padding_on_both_sides(name, repaired):
    """Rows that begin late and end early, in chunks; the last chunks have one position."""
    model = repaired(name)
    if feeds_rows_itself(name):
        pytest.skip("the release's own model feeds rows one by one")
    cache = caches(model, True)
    if not all(hasattr(one, "lengths") for one in recurrent(cache)):
        pytest.skip("the release's recurrent caches have only left padding")
    table = [[*row, 0, 0, 0, 0, 0] for row in LEFT]
    table[0][5:] = [0] * len(table[0][5:])
    ends = [5, LONGEST, LONGEST]
    for layer in recurrent(cache):
        layer.lengths = mx.array(ends)
    outputs = [
        model.call([row[start:stop] for row in table], cache)
        for start, stop in ((0, 5), (5, 10), (10, 11), (11, 12))
    ]
    out = mx.concatenate(outputs, axis=1)
    for row, (start, stop) in enumerate(zip(PADDING, ends, strict=True)):
        engine.forget(model)
        own = model.make_cache()
        logits = model.call([table[row][start:stop]], own)[0]
        assert mx.abs(out[row, start:stop] - logits).max().item() <= TOLERANCE
        for layer, solo in zip(recurrent(cache), recurrent(own), strict=True):
            for held, state in zip(layer.cache, solo.cache, strict=True):
                assert same_state(held[row : row + 1], state)


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
@or_skip()
def test_equal_rows_are_bit_identical(name, repaired):
    """Also if the caches have padding arrays that mark no padding."""
    model = repaired(name)
    table = [PROMPTS[0], [1, *PROMPTS[0][1:]]]
    logits = []
    for marked in (False, True):
        engine.forget(model)
        cache = engine.batch_cache(model, [0, 0])
        for layer in recurrent(cache):
            layer.left_padding = mx.array([0, 0]) if marked else None
            layer.lengths = mx.array([LONGEST] * 2) if marked else None
        logits.append(model.call(table, cache))
    assert mx.array_equal(*logits)


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
def test_failing_model_keeps_marks(name, repaired, monkeypatch):
    skip_without_body(name)
    model = repaired(name)
    if feeds_rows_itself(name):
        pytest.skip("the release's own model feeds rows one by one")
    cache = caches(model, True)
    before = [
        (one.left_padding.tolist(), getattr(one, "lengths", None)) for one in recurrent(cache)
    ]

    def fail(*args, **kwargs):
        raise RuntimeError("no memory")

    monkeypatch.setattr(type(body_of(model)), "__call__", fail)
    with pytest.raises(RuntimeError, match="no memory"):
        model.call(LEFT, cache)
    after = [(one.left_padding.tolist(), getattr(one, "lengths", None)) for one in recurrent(cache)]
    assert before == after
    assert recurrent_batch._ANNOUNCED.get() is None


def scan_modules():
    for distribution in ("mlx_lm", "mlx_vlm"):
        if is_installed(distribution.replace("_", "-")):
            try:
                yield pytest.importorskip(f"{distribution}.models.ssm")
            except pytest.skip.Exception:
                continue


@pytest.mark.parametrize("limits", [(0.001, 100.0), (0.0, math.inf)])
@pytest.mark.parametrize("left", [True, False], ids=["left", "right"])
def test_closed_step_keeps_state(left, limits):
    for module in scan_modules():
        mx.random.seed(3)
        heads, size, state_size, length = 4, 8, 16, 9
        scan = recurrent_batch.close_step(module.ssm_attn)
        x = mx.random.normal((2, length, heads, size))
        B, C = (mx.random.normal((2, length, 1, state_size)) for _ in "BC")
        dt, bias = mx.random.normal((2, length, heads)), mx.random.normal((heads,))
        A, D = mx.random.normal((heads,)), mx.ones((heads,))
        state = mx.random.normal((2, heads, size, state_size))
        span = (4, length) if left else (0, 5)
        with announce_padding([(0, length), span], length):
            y, after = scan(x, A, B, C, D, dt, bias, state, limits, mask=None)
        part = slice(*span)
        own = (one[1:, part] for one in (x, B, C, dt))
        x_, B_, C_, dt_ = own
        expected, solo = module.ssm_attn(x_, A, B_, C_, D, dt_, bias, state[1:], limits, mask=None)
        assert mx.allclose(after[1:], solo, atol=1e-5, rtol=1e-5)
        assert mx.allclose(y[1:, part], expected, atol=1e-4, rtol=1e-4)
        with announce_padding([(0, length), (length, length)], length):
            _, after = scan(x, A, B, C, D, dt, bias, state, limits, mask=None)
        assert mx.allclose(after[1:], state[1:], atol=1e-6)
        without = scan(x, A, B, C, D, dt, bias, state, limits, mask=None)
        assert mx.array_equal(
            without[1], module.ssm_attn(x, A, B, C, D, dt, bias, state, limits, mask=None)[1]
        )


def test_stretches():
    padding = Padding(((0, 6), (2, 6), (0, 3), (6, 6)), 6, None)
    assert recurrent_batch.find_stretches(padding) == [
        (0, 2, [True, False, True, False]),
        (2, 3, [True, True, True, False]),
        (3, 6, [True, True, False, False]),
    ]
    with announce_padding([(0, 2), (1, 2)], 2):
        held = recurrent_batch._ANNOUNCED.get().held
    assert held.tolist() == [[[True], [True]], [[False], [True]]]
    assert recurrent_batch._ANNOUNCED.get() is None


STARTED = [one for one in names() if one.endswith(":recurrent_gemma")]


def join_batch(model: LabModel) -> list[object]:
    """The caches of two rows; the second has states of zeros."""
    cache = caches(model, True)
    engine.forget(model)
    model.call(LEFT, cache)
    for layer in cache:
        layer.filter(mx.array([0, 2]))
    for layer in recurrent(cache):
        layer.cache = [mx.concatenate([one[:1], mx.zeros_like(one[1:])]) for one in layer.cache]
    return cache


@pytest.mark.parametrize("name", STARTED)
def test_row_starts_later(name, repaired, monkeypatch, device_reads):
    """Its first token results in its solo state; the other row is bit-identical."""
    model = repaired(name)
    caches_of, own = [join_batch(model) for _ in range(2)], model.make_cache()
    model.call([[5]], own)
    first, solo = (next(recurrent(one)) for one in (caches_of[0], own))
    device_reads.clear()
    model.call([[9], [5]], caches_of[0])
    assert not [one for one in device_reads if "recurrent_padding" in one]
    assert all(map(same_state, (one[1:] for one in first.cache), solo.cache))

    # Steps in which no row can start run the layer once.
    monkeypatch.setattr(recurrent_batch, "find_unfed", pytest.fail)
    model.call([[3], [4]], caches_of[0])
    # A broken patch: no row is found that starts.
    monkeypatch.setattr(recurrent_batch, "find_unfed", lambda states: None)
    model.call([[9], [5]], caches_of[1])
    wrong = next(recurrent(caches_of[1]))
    assert not all(map(same_state, (one[1:] for one in wrong.cache), solo.cache))


@pytest.mark.parametrize("name", STARTED)
def test_row_without_tokens_starts_later(name, repaired):
    """Also in a chunk of padding, when the row's states are already zeros."""
    model = repaired(name)
    cache = join_batch(model)
    for layer in recurrent(cache):
        layer.lengths, layer.left_padding = mx.array([1, 0]), None
    model.call([[9], [0]], cache)
    for layer in recurrent(cache):
        layer.lengths = None
    model.call([[3], [5]], cache)
    own = model.make_cache()
    model.call([[5]], own)
    held, solo = (next(recurrent(one)) for one in (cache, own))
    assert all(map(same_state, (one[1:] for one in held.cache), solo.cache))
