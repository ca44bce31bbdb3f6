"""mlx_lm.server: a request with XTC crashes generation or gets garbled text.

Why: The server passes the tokens that XTC must keep as a list in a list, which raises at the first
    token, in the thread that all requests share. It also passes only one of the stop tokens.
    Without a threshold in the request the threshold is zero: every token is a top choice, and all
    but the least probable are removed.
How: The sampler gets all stop tokens in one flat list, and a threshold of 0.1 if neither the
    request nor a caller of ``make_sampler`` (mlx-lm's or mlx-vlm's) passes one.
Upstream: mlx-lm 0.32.0 (issue 1176). Not fixed in ``make_sampler`` of mlx-vlm 0.7.10.
Retire when: No supported release has a default threshold of zero.
"""

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from ....core.verbs import Patch, argument, convert, everywhere, wrap
from ..._shared.parts import Overlay

# As in mlx-lm 0.32.0, and in the paper.
THRESHOLD = 0.1


def add_all_ends(tokenizer: Any) -> Overlay:
    """A tokenizer whose ``eos_token_id`` is the list of all its stop tokens."""
    ends = getattr(tokenizer, "eos_token_ids", [tokenizer.eos_token_id])
    return Overlay(tokenizer, eos_token_id=list(ends))


def make_with_threshold(make_sampler: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Make a sampler, with a default threshold and a flat list of special tokens."""
    call = inspect.signature(inspect.unwrap(make_sampler)).bind(*args, **kwargs)
    given = call.arguments
    given.setdefault("xtc_threshold", THRESHOLD)
    if given.get("xtc_special_tokens"):
        given["xtc_special_tokens"] = flatten_tokens(given["xtc_special_tokens"])
    return make_sampler(*call.args, **call.kwargs)


def flatten_tokens(tokens: Iterable[Any]) -> list[int]:
    """The token ids of a list that may contain lists, each once."""
    lists = (token if isinstance(token, (list, tuple)) else [token] for token in tokens)
    return list(dict.fromkeys(token for one in lists for token in one if token is not None))


def add_threshold(body: Any) -> Any:
    """A request's body, with the default threshold if it has XTC without one."""
    if isinstance(body, dict) and body.get("xtc_probability") and "xtc_threshold" not in body:
        return {**body, "xtc_threshold": THRESHOLD}
    return body


PATCH = Patch(
    id="server-xtc",
    severity="crash",
    targets=(
        # A verb would not see whether the call passes the threshold.
        *wrap(everywhere("sample_utils:make_sampler"), make_with_threshold),
        *argument("mlx_lm.server:_make_sampler", "tokenizer", add_all_ends),
        *convert("mlx_lm.server:APIHandler.body", "APIHandler.do_POST", write=add_threshold),
    ),
)
