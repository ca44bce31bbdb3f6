"""Prefills a batch cache whose padding columns hold NaN, and compares attention outputs.

The outputs of a row's real tokens must equal those with finite padding, bit for bit: in one
chunk, in several, past a window, and in decode steps.
"""

from collections.abc import Sequence
from typing import Any

from ....probes.kit import Result, Target, make_batch, mx, own_class_of

_WIDTH = 64
_LEFT_PADDING = (6, 0, 3)
_WINDOWS = {"short": 4, "long": 16}


def probe(target: Target) -> Result:
    """Red if the content of a padding column changes a real token's output."""
    batch_class = own_class_of(target)
    windows = _WINDOWS if "Rotating" in batch_class.__name__ else {"none": 0}
    wrong = [
        f"chunks {chunks}, window {name}"
        for chunks in ((8,), (5, 3), (4, 2, 2), (8, 1, 1, 2))
        for name, window in windows.items()
        if _reaches_tokens(batch_class, window, chunks)
    ]
    if wrong:
        return Result(True, f"NaN reaches real tokens in {len(wrong)} prefills, first: {wrong[0]}")
    return Result(False, "NaN in the padding reaches no real token")


def _reaches_tokens(batch_class: Any, window: int, chunks: Sequence[int]) -> bool:
    outputs = []
    for padding in (0.5, float("nan")):
        cache = make_batch(batch_class, list(_LEFT_PADDING), window)
        outputs.append(run_attention(cache, chunks, padding))
    real = mx.arange(sum(chunks)) >= mx.array(_LEFT_PADDING)[:, None]
    finite, nan = (mx.where(real[:, None, :, None], one, 0) for one in outputs)
    return not mx.array_equal(finite, nan).item()


def run_attention(cache: Any, chunks: Sequence[int], padding: float) -> Any:
    """Attention outputs (rows, heads, tokens, width); ``padding`` fills the padding columns."""
    length = sum(chunks)
    shape = (len(_LEFT_PADDING), 1, length, _WIDTH)
    real = (mx.arange(length) >= mx.array(_LEFT_PADDING)[:, None])[:, None, :, None]
    queries, keys, values = (
        mx.where(real, mx.random.normal(shape, key=mx.random.key(seed)), padding)
        for seed in range(3)
    )
    outputs, start = [], 0
    for chunk in chunks:
        here = slice(start, start + chunk)
        start += chunk
        mask = make_causal_mask(start - chunk, start)
        if hasattr(cache, "rotated"):
            mask = cache.make_mask(chunk)
        sides = cache.update_and_fetch(keys[:, :, here], values[:, :, here])
        sides = [
            one if isinstance(one, mx.array) else mx.dequantize(*one, cache.group_size, cache.bits)
            for one in sides
        ]
        outputs.append(
            mx.fast.scaled_dot_product_attention(queries[:, :, here], *sides, scale=1.0, mask=mask)
        )
    return mx.concatenate(outputs, axis=2)


def make_causal_mask(start: int, end: int) -> Any:
    """The causal mask with padding; mlx-vlm 0.5.0's quantized cache omits padding from its own."""
    columns = mx.arange(end)
    real = columns >= mx.array(_LEFT_PADDING)[:, None]
    return (mx.arange(start, end)[:, None] >= columns) & real[:, None, None, :]
