"""``top_p`` keeps far too few tokens of a bfloat16 or float16 model, or none at all.

Why
    The probabilities are summed in the model's own type. A running sum of bfloat16 stands still
    once it is some 500 times what a token adds: of 12,918 tokens ``top_p=0.95`` keeps 1,394 in
    place of 4,710, and none where all are as likely, so that what is drawn then is not a
    choice of the model. In float16 the sum stands still later; ``top_p_sampling`` of mlx-vlm,
    whose probabilities may then sum to three, draws tokens far beyond the nucleus.
How
    The sum is taken in float32, of probabilities that sum to one; what is kept has the values
    and the type that it had. float32 goes to the release as it is.
Upstream
    mlx-lm 0.32.0 sums in float32 (issue 1912), mlx-vlm 0.7.4 too.
Retire when
    No supported release sums in the model's type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...core.patch import Patch, Target, around


def applied(apply_top_p: Callable[..., Any], logprobs: Any, *args: Any, **kwargs: Any) -> Any:
    """The log probabilities (..., vocabulary), all but those of the nucleus at minus infinity."""
    import mlx.core as mx

    if logprobs.dtype == mx.float32:
        return apply_top_p(logprobs, *args, **kwargs)
    kept = apply_top_p(precise(logprobs), *args, **kwargs)
    return mx.where(kept > -mx.inf, logprobs, -mx.inf)


def sampled(top_p_sampling: Callable[..., Any], logits: Any, *args: Any, **kwargs: Any) -> Any:
    """Token ids that are drawn from the nucleus of logits (..., vocabulary)."""
    import mlx.core as mx

    # The release itself takes bfloat16 apart.
    if logits.dtype == mx.float16:
        logits = precise(logits)
    return top_p_sampling(logits, *args, **kwargs)


def precise(logits: Any) -> Any:
    """The log probabilities in float32; they sum to one, which rounded ones may miss by 3 %."""
    import mlx.core as mx

    logits = logits.astype(mx.float32)
    return logits - mx.logsumexp(logits, axis=-1, keepdims=True)


PATCH = Patch(
    id="top-p-dtype",
    summary="top_p keeps far too few tokens of a bfloat16 or float16 model, or none",
    targets=(
        Target("mlx-lm", "mlx_lm.sample_utils", "apply_top_p", around(applied)),
        Target("mlx-vlm", "mlx_vlm.sample_utils", "apply_top_p", around(applied)),
        Target("mlx-vlm", "mlx_vlm.sample_utils", "top_p_sampling", around(sampled)),
    ),
    probe="mlx_patches.probes.top_p_dtype:probe",
    module=__name__,
)
