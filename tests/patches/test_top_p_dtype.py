import mlx.core as mx
import pytest

from mlx_patches.core.packages import package_of
from mlx_patches.patches.generation.top_p_dtype.patch import keep_values, normalize_float16

from ..releases.models import module_or_skip

HALVES = [mx.bfloat16, mx.float16]
TOKENS = 20_000


@pytest.fixture
def samplers(distribution):
    return module_or_skip(f"{package_of(distribution)}.sample_utils", "apply_top_p")


def draw(shape=(2, TOKENS), scale=2.0):
    return scale * mx.random.normal(shape, key=mx.random.key(7))


def normalize(logits):
    return logits - mx.logsumexp(logits, axis=-1, keepdims=True)


@pytest.mark.parametrize("nucleus", [0.1, 0.5, 0.9, 0.95, 0.99])
@pytest.mark.parametrize("scale", [0.0, 0.5, 2.0, 6.0])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_nucleus_equals_float32(samplers, dtype, scale, nucleus):
    logprobs = normalize(draw(scale=scale).astype(dtype))
    kept = keep_values(samplers.apply_top_p, logprobs, nucleus)
    exact = samplers.apply_top_p(normalize(logprobs.astype(mx.float32)), nucleus)
    assert kept.dtype == dtype
    assert mx.array_equal(kept > -mx.inf, exact > -mx.inf)
    assert mx.array_equal(mx.where(kept > -mx.inf, kept, logprobs), logprobs)
    assert (kept > -mx.inf).any(axis=-1).all().item()


def test_float32_is_unchanged(samplers):
    logprobs = normalize(draw())
    seen = []
    keep_values(lambda *args: seen.append(args), logprobs, 0.9)
    assert seen[0][0] is logprobs
    ours, theirs = (
        keep_values(samplers.apply_top_p, logprobs, 0.9),
        samplers.apply_top_p(logprobs, 0.9),
    )
    assert mx.array_equal(ours.view(mx.uint32), theirs.view(mx.uint32))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_dropped_tokens_stay_dropped(samplers, dtype):
    logprobs = normalize(draw().astype(dtype))
    logprobs = mx.where(mx.arange(TOKENS) % 2 == 0, logprobs, -mx.inf)
    assert logprobs.dtype == dtype
    kept = keep_values(samplers.apply_top_p, logprobs, 0.9) > -mx.inf
    assert kept.any(axis=-1).all().item()
    assert not kept[:, 1::2].any().item()


def test_supported_dtypes_are_not_converted():
    for dtype, own in ((mx.float32, True), (mx.bfloat16, True), (mx.float16, False)):
        logits = draw().astype(dtype)
        seen = normalize_float16(logits)
        assert (seen is logits) == own
        assert seen.dtype == (dtype if own else mx.float32)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_sampler_draws_from_nucleus(samplers, dtype, ungated):
    """``make_sampler`` looks up its filters when it draws, so it uses the patched one."""
    ungated("top-p-dtype")
    sampler = samplers.make_sampler(temp=1.0, top_p=0.5)
    logprobs = normalize(draw((1, TOKENS)).astype(dtype))
    probabilities = mx.softmax(logprobs.astype(mx.float32), axis=-1)[0]
    order = mx.argsort(-probabilities)
    size = (mx.cumsum(probabilities[order]) < 0.5).sum().item()
    ranks = mx.argsort(order).tolist()
    mx.random.seed(3)
    last = max(ranks[sampler(logprobs).item()] for _ in range(60))
    assert size / 2 < last < size * 1.1
