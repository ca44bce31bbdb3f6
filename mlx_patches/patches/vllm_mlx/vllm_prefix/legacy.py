"""vllm-mlx with its older prefix cache: wrong output after a hit.

Why: ``--no-memory-aware-cache`` selects the cache of earlier releases, which has the defects of its
    successor: after a hit on the whole prompt the last token is fed twice, and a hit returns the
    stored caches themselves. Only the first layer decides whether a longer prompt's caches can be
    cut back; a wrapped window in a later layer is cut anyway.
How: The result of a hit is handled as in ``vllm-prefix-hit``; every layer must be trimmable.
Upstream: vllm-mlx 0.6.0 checks every layer.
Retire when: No supported release has this cache, or a release leaves a token to feed and returns
    copies.
"""

from collections.abc import Sequence
from typing import Any

from ....core.verbs import Patch, result
from .hit import cut_hit, is_trimmable


def check_all(can_trim: bool, prefixes: Any, prompt_cache: Sequence[Any], /) -> bool:
    """Whether the last tokens of every layer can be trimmed."""
    return bool(can_trim) and all(map(is_trimmable, prompt_cache))


_HOST = "vllm_mlx.prefix_cache"
_BODY = ("PrefixCacheManager.fetch_cache", "PrefixCacheManager._can_trim_cache")

PATCH = Patch(
    id="vllm-legacy-prefix-hit",
    formerly="legacy-prefix-hit",
    targets=(
        *result(f"{_HOST}:{_BODY[0]}", cut_hit, fingerprint_of=_BODY),
        *result(f"{_HOST}:{_BODY[1]}", check_all, fingerprint_of=_BODY),
    ),
    probe=".probe:probe_legacy",
)
