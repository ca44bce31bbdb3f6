"""A right-padded prompt whose last piece is one token raises in a rotating batch.

Why
    While right padding is pending, a ``BatchRotatingKVCache`` accepts pieces of a prompt, but no
    decode step. It treats every piece of one token as a decode step, the last piece of a prompt
    too: "finalize() should be called before deocoding with BatchRotatingKVCache". Every request
    of the batch fails, in each family with a sliding window.
How
    Until ``finalize`` a piece of one token is written like any other piece, and its mask is that
    of the first of two tokens. Where no padding is pending nothing changes.
Upstream
    Not fixed in mlx-lm 0.32.2. mlx-vlm 0.7 checks the pending padding.
Retire when
    ``update_and_fetch`` checks ``_lengths`` in every supported release.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...core.patch import Patch, Target, around

_BATCH = "BatchRotatingKVCache"
# The methods that tell a piece from a decode step.
_BODY = (f"{_BATCH}.update_and_fetch", f"{_BATCH}.make_mask")


def updated(update: Callable[..., Any], cache: Any, keys: Any, values: Any) -> Any:
    """Write one token (rows, heads, 1, width), as a piece of a prompt while padding is pending."""
    if not is_piece(cache):
        return update(cache, keys, values)
    return cache._update_concat(keys, values)


def masked(make_mask: Callable[..., Any], cache: Any, N: int, *args: Any, **kwargs: Any) -> Any:
    """The mask (rows, 1, N, columns) of N tokens, its columns in ``_update_concat``'s order."""
    if not is_last_piece(cache, N):
        return make_mask(cache, N, *args, **kwargs)
    return make_mask(cache, 2, *args, **kwargs)[..., :1, :-1]


def is_piece(cache: Any, *args: Any, **kwargs: Any) -> bool:
    """Whether the next token belongs to a prompt whose right padding is pending."""
    held = cache.__dict__
    return "_lengths" in held and held["_lengths"] is not None


def is_last_piece(cache: Any, N: int, *args: Any, **kwargs: Any) -> bool:
    """Whether the next ``N`` tokens are one, of a prompt whose right padding is pending."""
    return N == 1 and is_piece(cache)


PATCH = Patch(
    id="rotating-last-piece",
    severity="crash",
    every_model=True,
    summary="a right-padded prompt whose last piece is one token raises in a rotating batch",
    targets=tuple(
        target
        for distribution, module in (
            ("mlx-lm", "mlx_lm.models.cache"),
            ("mlx-vlm", "mlx_vlm.models.cache"),
        )
        for target in (
            Target(
                distribution,
                module,
                f"{_BATCH}._update_in_place",
                around(updated),
                _BODY,
                when=is_piece,
            ),
            Target(
                distribution,
                module,
                f"{_BATCH}.make_mask",
                around(masked),
                _BODY,
                when=is_last_piece,
            ),
        )
    ),
    probe="mlx_patches.probes.rotating_last_piece:probe",
    module=__name__,
)
