"""``top-p-dtype`` and ``top-p-rows``: the nucleus in every dtype, and results as released."""

from __future__ import annotations

import importlib
from types import SimpleNamespace

import pytest

from mlx_patches.patches import catalogue
from mlx_patches.patches.generation.top_p_dtype.patch import applied, sampled
from mlx_patches.patches.generation.top_p_rows import patch as top_p_rows

from ..releases.conftest import installed

mx = pytest.importorskip("mlx.core")
HALVES = [mx.bfloat16, mx.float16]
MODULES = [
    f"{package}.sample_utils"
    for package in ("mlx_lm", "mlx_vlm")
    if installed(package.replace("_", "-"))
]
TOKENS = 20_000


@pytest.fixture(params=MODULES)
def samplers(request):
    return importlib.import_module(request.param)


def needed(module, name):
    if not hasattr(module, name):
        pytest.skip(f"no {name} in this release")
    return getattr(module, name)


def drawn(shape=(2, TOKENS), scale=2.0):
    return scale * mx.random.normal(shape, key=mx.random.key(7))


def normalized(logits):
    return logits - mx.logsumexp(logits, axis=-1, keepdims=True)


@pytest.mark.parametrize("nucleus", [0.1, 0.5, 0.9, 0.95, 0.99])
@pytest.mark.parametrize("scale", [0.0, 0.5, 2.0, 6.0])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_the_nucleus_is_that_of_float32(samplers, dtype, scale, nucleus):
    apply_top_p = needed(samplers, "apply_top_p")
    logprobs = normalized(drawn(scale=scale).astype(dtype))
    kept = applied(apply_top_p, logprobs, nucleus)
    exact = apply_top_p(normalized(logprobs.astype(mx.float32)), nucleus)
    assert kept.dtype == dtype
    assert mx.array_equal(kept > -mx.inf, exact > -mx.inf)
    assert mx.array_equal(mx.where(kept > -mx.inf, kept, logprobs), logprobs)
    assert (kept > -mx.inf).any(axis=-1).all().item()


def test_float32_goes_to_the_release_as_it_is(samplers):
    apply_top_p = needed(samplers, "apply_top_p")
    logprobs = normalized(drawn())
    seen = []
    applied(lambda *args: seen.append(args), logprobs, 0.9)
    assert seen[0][0] is logprobs
    ours, theirs = applied(apply_top_p, logprobs, 0.9), apply_top_p(logprobs, 0.9)
    assert mx.array_equal(ours.view(mx.uint32), theirs.view(mx.uint32))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_tokens_that_another_filter_dropped_stay_dropped(samplers, dtype):
    apply_top_p = needed(samplers, "apply_top_p")
    logprobs = normalized(drawn().astype(dtype))
    logprobs = mx.where(mx.arange(TOKENS) % 2 == 0, logprobs, -mx.inf)
    assert logprobs.dtype == dtype
    kept = applied(apply_top_p, logprobs, 0.9) > -mx.inf
    assert kept.any(axis=-1).all().item()
    assert not kept[:, 1::2].any().item()


def test_types_that_the_release_takes_apart_are_not_converted():
    for dtype, own in ((mx.float32, True), (mx.bfloat16, True), (mx.float16, False)):
        logits = drawn().astype(dtype)
        seen = sampled(lambda given, *args: given, logits, 0.9, 1.0)
        assert (seen is logits) == own
        assert seen.dtype == (dtype if own else mx.float32)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_a_models_sampler_draws_from_the_nucleus(samplers, dtype, ungated):
    """``make_sampler`` looks up its filters when it draws, so it uses the patched one."""
    make_sampler = needed(samplers, "make_sampler")
    needed(samplers, "apply_top_p")
    ungated(catalogue.builtin().get("top-p-dtype"))
    sampler = make_sampler(temp=1.0, top_p=0.5)
    logprobs = normalized(drawn((1, TOKENS)).astype(dtype))
    probabilities = mx.softmax(logprobs.astype(mx.float32), axis=-1)[0]
    order = mx.argsort(-probabilities)
    size = (mx.cumsum(probabilities[order]) < 0.5).sum().item()
    ranks = mx.argsort(order).tolist()
    mx.random.seed(3)
    last = max(ranks[sampler(logprobs).item()] for _ in range(60))
    assert size / 2 < last < size * 1.1


@pytest.mark.parametrize("dtype", [mx.float32, *HALVES], ids=str)
def test_rows_draw_from_their_own_nucleus(dtype, ungated):
    if not installed("mlx-vlm"):
        pytest.skip("no mlx-vlm, whose function this is")
    module = importlib.import_module("mlx_vlm.sample_utils")
    for patch in ("top-p-rows", "top-p-dtype"):
        ungated(catalogue.builtin().get(patch))
    probable = [5, 2, 7]
    logits = (20.0 * mx.eye(8)[mx.array(probable)]).astype(dtype)
    tokens = module.top_p_sampling(logits, 0.5, 1.0)
    assert (tokens.shape, tokens.tolist()) == ((3,), probable)
    assert module.top_p_sampling(logits[1:2], 0.5, 1.0).tolist() == [2]


def test_a_row_alone_is_not_taken_apart():
    from mlx_patches.patches.generation.top_p_rows import patch as top_p_rows

    for shape in ((1, 8), (8,), (2, 3, 8)):
        logits = SimpleNamespace(ndim=len(shape), shape=shape)
        assert top_p_rows.sampled(lambda seen: seen, logits) is logits


def batches_that_are_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(top_p_rows, "several", lambda logits: False)


MUTANTS = {"top-p-rows": batches_that_are_one_row}
