"""Gemma 2, Phi-3, Phi-MoE and StarCoder2 ignore their sliding window: wrong long texts.

Why: Each token of Gemma 2's even layers attends to the 4,096 tokens before it, of Phi 3 mini's
    layers to 2,047, of StarCoder 2's to 4,096. Releases drop ``sliding_window`` from these configs:
    every token attends to the whole text, which gets worse from there on. Mistral 7B 0.1 has a
    window too, and is not repaired: releases load it as Llama, whose every layer would pay.
How: The config object keeps the window, and the layers that have one get a mask that hides what is
    beyond it. Up to the window the release's own mask is used. The cache stays as it is.
Upstream: Not fixed in mlx-lm 0.32.2 and mlx-vlm 0.7.10.
Retire when: Every supported release reads the window of these families.
"""

from typing import Any

from ....core.verbs import Patch, after, argument, family, mx, result
from ..._shared.configs import FROM_DICT

_KEPT = "_dropped_window"


def keep_window(config: Any, cls: Any, params: dict[str, Any], /) -> Any:
    """The config object with the window that ``config.json`` names."""
    window = params.get("sliding_window") if isinstance(params, dict) else None
    if isinstance(window, int) and params.get("use_sliding_window", True):
        config._dropped_window = (window, 2 if params.get("model_type") == "gemma2" else 1)
    return config


def set_windows(model: Any, config: Any, /) -> None:
    window, every = getattr(config, _KEPT, (None, 1))
    if window:
        for layer in model.layers[::every]:
            layer.self_attn._dropped_window = window


def hide_beyond_window(attention: Any, x: Any, /, mask: Any, cache: Any) -> Any:
    """The layer's mask, which also hides what is beyond its window."""
    return narrow_mask(mask, x.shape[1], cache, vars(attention)[_KEPT])


def has_window(attention: Any, /) -> bool:
    return _KEPT in vars(attention)


def narrow_mask(mask: Any, length: int, cache: Any, window: int) -> Any:
    """A mask that also hides the columns before each token's window."""
    if hasattr(cache, "max_size"):  # the host bounds it, and its columns are in another order
        return mask
    is_array = isinstance(mask, mx.array)
    held = getattr(cache, "_idx", getattr(cache, "offset", 0))
    columns = mask.shape[-1] if is_array else held + length
    if columns <= window:
        return mask
    back = mx.arange(columns - length, columns)[:, None] - mx.arange(columns)
    seen = back < window
    if not is_array:
        return seen & (back >= 0)
    return mask & seen if mask.dtype == mx.bool_ else mx.where(seen, mask, -mx.inf)


_MODELS = {
    "gemma2": "GemmaModel",
    "phi3": "Phi3Model",
    "phimoe": "PhiMoEModel",
    "starcoder2": "Starcoder2Model",
}

PATCH = Patch(
    id="dropped-window",
    every_model=True,
    wrong_solo="gemma2",
    targets=(
        *result(FROM_DICT, keep_window, supports=True),
        *(
            target
            for name, model in _MODELS.items()
            for target in (
                *after(family(name, f"{model}.__init__"), set_windows),
                *argument(
                    family(name, "Attention.__call__"),
                    "mask",
                    hide_beyond_window,
                    fingerprint_of=(f"{model}.__init__", "Attention.__call__"),
                    when=has_window,
                ),
            )
        ),
    ),
)
