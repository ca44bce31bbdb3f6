"""Builds the caches of prompts with a cached prefix, a shorter one and none."""

from collections.abc import Sequence
from typing import Any

from ....probes.kit import Result, Target, make_prefix_hits, mx, require_own

# The heads and width of each layer's keys and values.
LATENT = [((2, 6), (2, 4)), ((2, 6), (2, 4))]
LENGTHS = (5, 3, 0)


def probe(target: Target) -> Result:
    """Red if the built caches lack a prefix, or cannot be built."""
    make = require_own(target)
    picks = make_prefix_hits(LATENT, LENGTHS)
    caches, longest = make(picks, len(LATENT))
    wrong = compare_prefixes(caches, picks, longest)
    return Result(bool(wrong), "; ".join(wrong) or "each row's prefix is in its caches")


def compare_prefixes(
    caches: Sequence[Any], picks: Sequence[dict[str, Any] | None], longest: int
) -> list[str]:
    """One line per layer and row whose keys or values differ from the prefix."""
    found = []
    for layer, cache in enumerate(caches):
        for name in ("keys", "values"):
            held = getattr(cache, name)[..., :longest, :]
            for row, pick in enumerate(picks):
                if pick is None:
                    continue
                want = getattr(pick["matched_blocks"][0], name)[layer]
                got = held[row : row + 1, :, longest - pick["prefix_len"] :]
                if got.shape != want.shape or not mx.array_equal(got, want):
                    found.append(f"layer {layer}, row {row}: {name} differ")
    return found
