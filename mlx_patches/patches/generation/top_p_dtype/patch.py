"""mlx-lm and mlx-vlm: top_p keeps too few tokens, or none, in bfloat16 and float16.

Why: The probabilities are summed in the model's own dtype. A running sum in bfloat16 stops growing
    once it is about 500 times the next probability: of 12,918 tokens ``top_p=0.95`` keeps 1,394
    instead of 4,710. If all tokens are equally likely it keeps none, and the token that is drawn
    then is not the model's choice. In float16 the sum stops growing later; in ``top_p_sampling`` of
    mlx-vlm the probabilities may then sum to three, and tokens far beyond the nucleus are drawn.
How: The sum is computed in float32, over probabilities that sum to one; tokens that are kept have
    their own values and dtype. float32 input is passed to the release unchanged.
Upstream: mlx-lm 0.32.0 sums in float32 (issue 1912), mlx-vlm 0.7.4 too.
Retire when: No supported release sums in the model's dtype.
"""

from typing import Any

from ....core.verbs import Patch, argument, everywhere, mx, wrap


def keep_values(apply_top_p: Any, logprobs: Any, *args: Any, **kwargs: Any) -> Any:
    """The log probabilities (..., vocabulary), minus infinity for tokens outside the nucleus."""
    if logprobs.dtype == mx.float32:
        return apply_top_p(logprobs, *args, **kwargs)
    nucleus = apply_top_p(normalize(logprobs), *args, **kwargs)
    return mx.where(nucleus > -mx.inf, logprobs, -mx.inf)


def normalize_float16(logits: Any) -> Any:
    """The logits (..., vocabulary) to sample from; the release itself handles bfloat16."""
    return normalize(logits) if logits.dtype == mx.float16 else logits


def normalize(logits: Any) -> Any:
    """The log probabilities in float32; before, the rounded ones may sum to 3 % more or less."""
    logits = logits.astype(mx.float32)
    return logits - mx.logsumexp(logits, axis=-1, keepdims=True)


PATCH = Patch(
    id="top-p-dtype",
    targets=(
        *wrap(everywhere("sample_utils:apply_top_p"), keep_values),
        *argument("mlx_vlm.sample_utils:top_p_sampling", "logits", normalize_float16),
    ),
)
