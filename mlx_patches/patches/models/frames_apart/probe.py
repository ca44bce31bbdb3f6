"""Attends to five frames of a few patches at once, and to each frame on its own."""

from typing import Any

from ....probes.kit import Result, Target, compare_arrays, mx, own_class_of, require_own

DIM, HEADS, FRAMES, PATCHES = 16, 2, 5, 3


def probe(target: Target) -> Result:
    """Red if a frame's result depends on the other frames."""
    require_own(target)
    attention = own_class_of(target)(dim=DIM, num_heads=HEADS)
    x = mx.random.normal((FRAMES * PATCHES, DIM), key=mx.random.key(1))
    rotary = mx.random.normal((FRAMES * PATCHES, DIM // HEADS // 2), key=mx.random.key(2))

    def attend(count: int, start: int = 0) -> Any:
        fed = slice(start, start + count * PATCHES)
        ends = mx.arange(count + 1) * PATCHES
        return attention(x[fed], cu_seqlens=ends, rotary_pos_emb=rotary[fed])

    solo = mx.concatenate([attend(1, frame * PATCHES) for frame in range(FRAMES)])
    return compare_arrays(attend(FRAMES), solo, 1e-4)
