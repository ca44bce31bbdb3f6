"""Qwen3.5 in mlx-vlm with kv_bits: decode steps of a batch attend to padding.

Why: For a decode step over left padding the decoder passes its layers a sentinel string instead of
    a mask array, and attention cuts the padding off each row's keys. Quantized keys cannot be cut
    this way: attention falls back to the ordinary function, without a mask.
How: If a row has padding, the layers get the mask that the quantized cache makes, as for a prompt.
    Without padding, the layers get the release's own argument.
Upstream: Not fixed in mlx-vlm 0.7.10.
Retire when: The decoder makes a mask for quantized caches.
"""

from typing import Any

from ....core.verbs import Patch, result
from ..._shared.quantized import holds_quantized

# The string that the decoder passes its layers instead of a mask if a row has padding.
CUT_PADDING = "left_padded_decode"


def make_padding_mask(mask: Any, /, h: Any, cache: Any) -> Any:
    """The mask for ``h`` (rows, length, width) over the keys of a cache.

    The release decides whether there is padding, so a batch without any computes no mask.
    """
    if isinstance(mask, str) and mask == CUT_PADDING and holds_quantized(cache):
        return cache.make_mask(h.shape[1], return_array=False, window_size=None)
    return mask


PATCH = Patch(
    id="quantized-decode-mask",
    targets=result(
        "mlx_vlm.models.qwen3_5.language:_create_qwen3_5_attention_mask", make_padding_mask
    ),
)
