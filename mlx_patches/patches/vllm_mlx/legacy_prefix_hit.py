"""A prompt that vllm-mlx finds in its older prefix cache is answered from another context.

Why
    ``--no-memory-aware-cache`` takes the cache of earlier releases, which has the faults of its
    successor: a hit that covers the whole prompt has the last token fed twice, and the stored
    caches themselves are handed out. Whether a longer prompt's caches can be cut back is asked
    of the first layer alone; a wrapped window behind it is cut all the same.
How
    What a hit returns is treated as in ``prefix-hit``; every layer is asked.
Upstream
    vllm-mlx 0.6.0 asks every layer.
Retire when
    No supported release has this cache, or a release leaves a token and copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...core.patch import Patch, Target, around
from .prefix_hit import fetched, trimmable

_BODY = tuple(f"PrefixCacheManager.{name}" for name in ("fetch_cache", "_can_trim_cache"))


def all_trimmable(can_trim: Any, prefixes: Any, prompt_cache: Sequence[Any]) -> bool:
    """Whether every layer can give back its last tokens."""
    return bool(can_trim(prefixes, prompt_cache)) and all(map(trimmable, prompt_cache))


PATCH = Patch(
    id="legacy-prefix-hit",
    summary="a prompt found in the host's older prefix cache is answered from another context",
    targets=tuple(
        Target("vllm-mlx", "vllm_mlx.prefix_cache", name, around(wrapper), body=_BODY)
        for name, wrapper in zip(
            _BODY,
            (
                lambda *args: fetched(*args),
                lambda *args: all_trimmable(*args),
            ),
            strict=True,
        )
    ),
    probe="mlx_patches.probes.prefix_hit:legacy_probe",
    module=__name__,
)
