"""Draws of a request with a seed, which depend on nothing but the seed and the token's number."""

import secrets
from collections.abc import Callable
from typing import Any

from ...core.arrays import mx

_SEEDS = 2**64
# Odd numbers that spread seeds and token numbers over 64 bits.
_SEED, _TOKEN = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9


def draw(sampler: Callable[[Any], Any], logprobs: Any, seed: int, number: int) -> Any:
    """Sample token ``number`` of an answer with a sampler that reads MLX's random state."""
    mx.random.seed((seed * _SEED + (number + 1) * _TOKEN) % _SEEDS)
    try:
        return sampler(logprobs)
    finally:  # other rows draw from the same state
        mx.random.seed(secrets.randbits(63))


class Seeded:
    """A sampler of one row with its own seed."""

    def __init__(self, sampler: Callable[[Any], Any], seed: int):
        self.sampler, self.seed, self.number = sampler, seed, -1

    def __call__(self, logprobs: Any) -> Any:
        self.number += 1
        return draw(self.sampler, logprobs, self.seed, self.number)
