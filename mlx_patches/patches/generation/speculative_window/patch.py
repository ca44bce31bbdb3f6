"""mlx-lm speculative decoding keeps rejected tokens once a sliding window is full.

Why: Draft tokens that the model rejects are trimmed from the caches. A rotating cache with a full
    window is not trimmable: ``trim_prompt_cache`` then trims no layer at all and returns 0, which
    the caller ignores. The rejected tokens stay in the context of all later tokens. Earlier
    releases decode recurrent models in the same way; later ones also refuse each later turn over a
    kept cache whose window is full.
How: The model verifies the draft tokens in one call, and a rotating cache keeps all tokens of a
    call beside its window until the next call. Tokens beyond its window, or all tokens if none has
    been dropped yet, can be cut off exactly, and the patch does so. The draft model drafts token by
    token, so its own full window still keeps rejected tokens: its drafts get worse, the answer does
    not. A turn may start with full windows; a recurrent model is refused.
Upstream: Not fixed in mlx-lm 0.32.2.
Retire when: ``trim_prompt_cache`` trims full windows as far as it is exact, or decoding raises an
    error.
"""

import sys
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import Any

from ....core.errors import refusal
from ....core.verbs import Function, Patch, wrap

_STARTS: ContextVar[bool] = ContextVar("mlx_patches_drafts_start", default=False)


def start_with_windows(
    generate: Function, prompt: Any, model: Any, *args: Any, **options: Any
) -> Iterator[Any]:
    """Decode a model that can forget rejected tokens, also from caches whose windows are full."""
    if names := ", ".join(find_recurrent(model)):
        raise refusal(ValueError(f"a draft model cannot be used with this model's {names}"))
    steps: Iterator[Any] = generate(prompt, model, *args, **options)
    return steps if options.get("prompt_cache") is None else start(steps)


def find_recurrent(model: Any) -> list[str]:
    """The kinds of a model's caches that cannot take tokens back."""
    caches = list_layers(sys.modules["mlx_lm.models.cache"].make_prompt_cache(model))
    return sorted({type(layer).__name__ for layer in caches if not layer.is_trimmable()})


def start(steps: Any) -> Iterator[Any]:
    """Yield the steps; before the first one, full windows count as trimmable."""
    try:
        token = _STARTS.set(True)
        try:
            first = next(steps, None)
        finally:
            _STARTS.reset(token)
        if first is not None:
            yield first
            yield from steps
    finally:
        steps.close()


def allow_windows(can_trim: Function, cache: Sequence[Any]) -> bool:
    """Whether the caches can be trimmed; at the start of a turn with drafts, windows can."""
    return can_trim(cache) or (
        _STARTS.get() and all(one.is_trimmable() or is_window(one) for one in list_layers(cache))
    )


def trim_windows(trim: Function, cache: Sequence[Any], num_tokens: int) -> Any:
    """Cut the last tokens off all caches, or off none; returns the number of tokens cut."""
    layers = list_layers(cache)
    release_trims = all(layer.is_trimmable() for layer in layers)
    possible = all(layer.is_trimmable() or count_trimmable(layer) >= num_tokens for layer in layers)
    if release_trims or not possible or num_tokens < 1:
        return trim(cache, num_tokens)
    for layer in layers:
        if layer.is_trimmable():
            layer.trim(num_tokens)
        else:
            layer._idx -= num_tokens
            layer.offset -= num_tokens
            layer.keys, layer.values = (s[:, :, : layer._idx] for s in (layer.keys, layer.values))
    return num_tokens


def list_layers(cache: Sequence[Any]) -> list[Any]:
    return [inner for layer in cache for inner in getattr(layer, "caches", (layer,))]


def is_window(layer: Any) -> bool:
    """Whether a cache is one row's window."""
    return hasattr(layer, "max_size") and isinstance(layer.offset, int)


def count_trimmable(layer: Any) -> int:
    """The number of last tokens that can be cut off a full window exactly."""
    if not is_window(layer) or layer._idx != layer.keys.shape[2]:
        return 0  # a batch, no window, or one that is not in order
    dropped_none = layer._idx == layer.offset
    return int(layer._idx if dropped_none else max(0, layer._idx - layer.max_size))


PATCH = Patch(
    id="speculative-window",
    every_model=True,
    targets=(
        *wrap(
            "mlx_lm.models.cache:trim_prompt_cache",
            trim_windows,
            fingerprint_of=("trim_prompt_cache", "RotatingKVCache.is_trimmable"),
        ),
        *wrap("mlx_lm.models.cache:can_trim_prompt_cache", allow_windows, supports=True),
        *wrap("mlx_lm.generate:speculative_generate_step", start_with_windows),
    ),
)
