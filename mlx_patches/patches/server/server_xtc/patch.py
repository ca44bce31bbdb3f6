"""A request with XTC stops ``mlx_lm.server``'s generation; without a threshold it gets garbage.

Why
    The server passes the tokens that XTC must keep as a list in a list, which raises when the
    first token is drawn, in the thread that all requests share. It also passes only one of the
    stop tokens. Without a threshold in the request, the threshold is zero: every token is a top
    choice, and all but the least probable are removed.
How
    The sampler gets all stop tokens in one flat list, and a threshold of 0.1 if none is given by
    the request or by a caller of ``make_sampler``, also mlx-vlm's. A given threshold is kept.
Upstream
    mlx-lm 0.32.0 (issue 1176). Not fixed in ``make_sampler`` of mlx-vlm 0.7.10.
Retire when
    No supported release has a default threshold of zero.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from ....core.patch import Attribute, Patch, Target, around
from ..._shared.parts import Overlay
from ..._shared.targets import SAMPLERS, at

# As in mlx-lm 0.32.0, and in the paper.
THRESHOLD = 0.1


def with_all_ends(tokenizer: Any) -> Overlay:
    """A tokenizer whose ``eos_token_id`` is the list of all its stop tokens."""
    ends = getattr(tokenizer, "eos_token_ids", [tokenizer.eos_token_id])
    return Overlay(tokenizer, eos_token_id=list(ends))


def make_for_request(make: Callable[..., Any], args: Any, tokenizer: Any) -> Any:
    """The sampler of a request to the server."""
    return make(args, with_all_ends(tokenizer))


def make_with_ends(make_sampler: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Make a sampler, with a default threshold and a flat list of special tokens."""
    call = inspect.signature(inspect.unwrap(make_sampler)).bind(*args, **kwargs)
    given = call.arguments
    given.setdefault("xtc_threshold", THRESHOLD)
    if given.get("xtc_special_tokens"):
        given["xtc_special_tokens"] = flat(given["xtc_special_tokens"])
    return make_sampler(*call.args, **call.kwargs)


def flat(tokens: Iterable[Any]) -> list[int]:
    """Token ids from a list that may contain lists, each once."""
    lists = (token if isinstance(token, (list, tuple)) else [token] for token in tokens)
    return list(dict.fromkeys(token for one in lists for token in one if token is not None))


def complete(body: Any) -> Any:
    """A request's body, with the default threshold if it has XTC without one."""
    if isinstance(body, dict) and body.get("xtc_probability") and "xtc_threshold" not in body:
        return {**body, "xtc_threshold": THRESHOLD}
    return body


PATCH = Patch(
    id="server-xtc",
    severity="crash",
    every_model=True,
    summary="mlx_lm.server: a request with XTC crashes generation or gets garbled text",
    targets=(
        *at(SAMPLERS, {"make_sampler": around(make_with_ends)}),
        Target("mlx-lm", "mlx_lm.server", "_make_sampler", around(make_for_request)),
        Target(
            "mlx-lm",
            "mlx_lm.server",
            "APIHandler.body",
            lambda original: Attribute("body", write=complete),
            fingerprint_of=("APIHandler.do_POST",),
            defines_new_attribute=True,
        ),
    ),
)
