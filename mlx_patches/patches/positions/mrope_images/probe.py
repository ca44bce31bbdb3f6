"""Compares the positions of a prompt with two images with a plain count."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from ....probes.kit import Result, Target, class_of, make_module, mx, require_own

IMAGE, VIDEO, START, END = 90, 91, 92, 93
MERGED = 2
CONFIG = SimpleNamespace(
    image_token_id=IMAGE,
    video_token_id=VIDEO,
    vision_start_token_id=START,
    image_start_token_id=START,
    vision_config=SimpleNamespace(spatial_merge_size=MERGED),
)
# The rows and columns of patches of two images.
SIZES = ((4, 6), (6, 4))


def make_prompt(*sizes: tuple[int, int]) -> list[int]:
    """Make the tokens of a prompt with images of these sizes and text around them."""
    tokens = [5, 6]
    for high, wide in sizes:
        tokens += [START, *[IMAGE] * (high * wide // MERGED**2), END, 7, 8]
    return tokens


def count_positions(tokens: Sequence[int], sizes: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Count the positions along each axis; images and text continue from the largest before."""
    found: list[tuple[int, int, int]] = []
    left, begun = list(sizes), 0
    while len(found) < len(tokens):
        begun = max((max(one) + 1 for one in found), default=0)
        if tokens[len(found)] != IMAGE:
            found.append((begun, begun, begun))
            continue
        high, wide = left.pop(0)
        for row in range(high // MERGED):
            for column in range(wide // MERGED):
                found.append((begun, begun + row, begun + column))
    return [list(axis) for axis in zip(*found, strict=True)]


def make_model(target: Target) -> Any:
    """Make the language model of a target, without weights."""
    return make_module(class_of(target), config=CONFIG)


def probe(target: Target) -> Result:
    """Red if the images of a prompt are not positioned by rows and columns."""
    require_own(target)
    tokens = make_prompt(*SIZES)
    grids = mx.array([[1, *size] for size in SIZES])
    positions, _ = make_model(target).get_rope_index(mx.array([tokens]), grids)
    expected = mx.array(count_positions(tokens, SIZES))
    wrong = (positions[:, 0] != expected).any(axis=0).sum().item()
    return Result(wrong > 0, f"{wrong} of {len(tokens)} tokens have other positions")
