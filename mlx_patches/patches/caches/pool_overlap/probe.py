"""Pools a text in one call and in several, with solo and batch caches."""

from types import SimpleNamespace
from typing import Any

from ....probes.kit import Result, Target, import_module, mx, require_own

MODEL = "mlx_vlm.models.deepseek_v4.language"
RATIO = 4
WIDTH = 8
LENGTH = 23
# The numbers of tokens in the calls that read the text.
CHUNKS = ([9, 8, 6], [8, *[1] * 15], [1] * 23, [2, 3, 7, 1, 10])


def probe(target: Target) -> Result:
    """Red if a text is pooled differently in several calls than in one."""
    require_own(target)
    module: Any = import_module(MODEL)
    compressor = make_compressor(module)
    expected = pool_text(compressor, module.PoolingCache(RATIO), [LENGTH])
    for chunks in CHUNKS:
        found = pool_text(compressor, module.PoolingCache(RATIO), chunks)
        if wrong := compare_pooled(found, expected):
            return Result(True, f"in calls of {chunks}: pooled tokens differ by {wrong:.2g}")
    found = pool_text(
        compressor, module.PoolingCache.merge([module.PoolingCache(RATIO)]), CHUNKS[0]
    )
    if wrong := compare_pooled(found, expected):
        return Result(True, f"in a batch: pooled tokens differ by {wrong:.2g}")
    return Result(False, "a text is pooled the same in any number of calls")


def make_compressor(module: Any) -> Any:
    from mlx.utils import tree_map

    config = SimpleNamespace(
        hidden_size=WIDTH,
        qk_rope_head_dim=WIDTH,
        rms_norm_eps=1e-6,
        compress_rope_theta=10000.0,
        rope_scaling=None,
        max_position_embeddings=1024,
    )
    compressor = module.Compressor(config, RATIO, WIDTH)
    key = iter(mx.random.split(mx.random.key(0), 16))
    random = lambda array: mx.random.normal(array.shape, key=next(key))  # noqa: E731
    compressor.update(tree_map(random, compressor.parameters()))
    return compressor


def pool_text(compressor: Any, cache: Any, chunks: list[int]) -> Any:
    text = mx.random.normal((1, LENGTH, WIDTH), key=mx.random.key(1))
    start = 0
    for chunk in chunks:
        tokens = compressor(text[:, start : start + chunk], cache, start)
        start += chunk
    return tokens


def compare_pooled(found: Any, expected: Any) -> float:
    """The largest difference, 0 within rounding; infinite if the shapes differ."""
    if found.shape != expected.shape:
        return float("inf")
    largest: float = mx.abs(found - expected).max().item()
    return largest if not largest < 1e-4 else 0.0
