"""A number in a request that is outside of the vocabulary, or too large, ends the server.

Why
    ``logit_bias`` for a token id outside of the vocabulary writes beyond the logits: the process
    ends with SIGSEGV, at once or later. A ``top_k`` of the vocabulary's size or more, a penalty's
    context of more than 64 bits and such a token id raise in the thread that all requests share.
    ``mlx_lm.server`` drops the connection for a ``seed`` below zero or of more than 64 bits.
How
    Token ids outside of the vocabulary are left out, and such a ``top_k`` keeps every token. A
    larger context than there are tokens is all of them. A seed is cut to 64 bits.
Upstream
    Not fixed in mlx-lm 0.32.2 and mlx-vlm 0.7.10.
Retire when
    The releases refuse these numbers, or do the same.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from ....core.patch import Patch, Target, around
from ..._shared.targets import SAMPLERS, at

# As many numbers as MLX takes for a seed, and more tokens than any context or vocabulary has.
SEEDS = 2**64
_CONTEXT = 2**31 - 1


def within_vocabulary(
    make: Callable[..., Any], bias: dict[int, float]
) -> Callable[[Any, Any], Any]:
    """What ``make`` makes of a ``logit_bias``, for the token ids that the logits have."""

    @functools.cache
    def processors(size: int) -> Any:
        return make({token: value for token, value in bias.items() if 0 <= token < size})

    def process(tokens: Any, logits: Any) -> Any:
        for processor in processors(vocabulary(logits)):
            logits = processor(tokens, logits)
        return logits

    return process


def within_limits(make: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Make a request's logits processors; numbers outside of their limits do nothing."""
    call = inspect.signature(inspect.unwrap(make)).bind(*args, **kwargs)
    given = call.arguments
    bias = given.get("logit_bias")
    if bias:
        bias = {token: value for token, value in bias.items() if 0 <= token <= _CONTEXT}
        make(bias)  # a value that is no number raises here, as without the patch
        given["logit_bias"] = None
    for name, value in given.items():
        if name.endswith("context_size") and isinstance(value, int):
            given[name] = min(value, _CONTEXT)
    processors = make(*call.args, **call.kwargs)
    return [within_vocabulary(make, bias), *processors] if bias else processors


def top_k_within(apply: Callable[..., Any], logprobs: Any, top_k: Any, *args: Any) -> Any:
    """Keep the ``top_k`` best tokens; all of them if there are no more."""
    if isinstance(top_k, int) and top_k >= vocabulary(logprobs):
        return logprobs
    return apply(logprobs, top_k, *args)


def vocabulary(logits: Any) -> int:
    """The number of tokens that logits have."""
    return int(logits.shape[-1])


def seed_within(
    generate: Callable[..., Any], server: Any, request: Any, options: Any, *args: Any, **kwargs: Any
) -> Any:
    """mlx-lm's server: answer a request, with a seed that the random generator takes."""
    if isinstance(options.seed, int):
        options.seed %= SEEDS
    return generate(server, request, options, *args, **kwargs)


PATCH = Patch(
    id="sampling-limits",
    severity="crash",
    every_model=True,
    summary="mlx-lm and mlx-vlm servers crash on a token id or top_k outside the vocabulary",
    targets=(
        *at(SAMPLERS, {"make_logits_processors": around(within_limits)}),
        *at(SAMPLERS, {"apply_top_k": around(top_k_within)}),
        Target("mlx-lm", "mlx_lm.server", "ResponseGenerator.generate", around(seed_within)),
    ),
)
