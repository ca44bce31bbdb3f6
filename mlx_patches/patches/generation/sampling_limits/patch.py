"""mlx-lm and mlx-vlm servers crash on a token id or top_k outside the vocabulary.

Why: ``logit_bias`` for a token id outside the vocabulary writes beyond the logits: the process
    crashes with SIGSEGV, at once or later. A ``top_k`` of the vocabulary's size or more, a
    penalty's context size of more than 64 bits and such a token id raise in the thread that all
    requests share. ``mlx_lm.server`` drops the connection for a ``seed`` that is negative or has
    more than 64 bits.
How: Token ids outside the vocabulary are ignored, and such a ``top_k`` keeps every token. A context
    size is cut to 31 bits, more than any text has tokens, and a seed to 64 bits.
Upstream: Not fixed in mlx-lm 0.32.2 and mlx-vlm 0.7.10.
Retire when: The releases reject these numbers, or do the same.
"""

import functools
import inspect
from typing import Any

from ....core.verbs import Function, Patch, argument, everywhere, wrap

# How many seeds MLX has, and more tokens than any context or vocabulary has.
SEEDS = 2**64
_CONTEXT = 2**31 - 1


def make_in_limits(make: Function, *args: Any, **kwargs: Any) -> Any:
    """Make a request's logits processors; out-of-range token ids are ignored."""
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
    return [bias_vocabulary(make, bias), *processors] if bias else processors


def bias_vocabulary(make: Function, bias: dict[int, float]) -> Function:
    """The processor of a ``logit_bias`` that ignores token ids outside the vocabulary."""

    @functools.cache
    def make_processors(size: int) -> Any:
        return make({token: value for token, value in bias.items() if 0 <= token < size})

    def process(tokens: Any, logits: Any) -> Any:
        for processor in make_processors(count_tokens(logits)):
            logits = processor(tokens, logits)
        return logits

    return process


def limit_top_k(apply: Function, logprobs: Any, top_k: Any, *args: Any) -> Any:
    if isinstance(top_k, int) and top_k >= count_tokens(logprobs):
        return logprobs
    return apply(logprobs, top_k, *args)


def count_tokens(logits: Any) -> int:
    return int(logits.shape[-1])


def limit_seed(generation_args: Any) -> Any:
    if isinstance(generation_args.seed, int):
        generation_args.seed %= SEEDS
    return generation_args


PATCH = Patch(
    id="sampling-limits",
    severity="crash",
    targets=(
        *wrap(everywhere("sample_utils:make_logits_processors"), make_in_limits),
        *wrap(everywhere("sample_utils:apply_top_k"), limit_top_k),
        *argument("mlx_lm.server:ResponseGenerator.generate", "generation_args", limit_seed),
    ),
)
