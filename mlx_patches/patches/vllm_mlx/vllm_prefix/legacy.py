"""A prompt that vllm-mlx finds in its older prefix cache is answered from a wrong context.

Why
    ``--no-memory-aware-cache`` selects the cache of earlier releases, which has the same defects
    as its successor: after a hit that covers the whole prompt, the last token is fed twice, and
    a hit returns the stored caches themselves. Only the first layer decides whether a longer
    prompt's caches can be cut back; a wrapped window in a later layer is cut anyway.
How
    The result of a hit is treated as in ``vllm-prefix-hit``; every layer must be trimmable.
Upstream
    vllm-mlx 0.6.0 checks every layer.
Retire when
    No supported release has this cache, or a release leaves a token to feed and returns copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....core.patch import Patch, around
from ..._shared.targets import at
from .hit import fetch_and_cut, trimmable


def all_trimmable(can_trim: Any, prefixes: Any, prompt_cache: Sequence[Any]) -> bool:
    """Whether the last tokens of every layer can be trimmed."""
    return bool(can_trim(prefixes, prompt_cache)) and all(map(trimmable, prompt_cache))


_AROUND = {
    "PrefixCacheManager.fetch_cache": around(fetch_and_cut),
    "PrefixCacheManager._can_trim_cache": around(all_trimmable),
}

PATCH = Patch(
    id="vllm-legacy-prefix-hit",
    formerly="legacy-prefix-hit",
    every_model=True,
    summary="vllm-mlx with its older prefix cache: wrong output after a hit",
    targets=at([("vllm-mlx", "vllm_mlx.prefix_cache")], _AROUND, fingerprint_of=tuple(_AROUND)),
    probe=".probe:legacy_probe",
)
