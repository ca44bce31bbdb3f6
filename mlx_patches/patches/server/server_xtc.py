"""A request with XTC ends ``mlx_lm.server``'s generation; without a threshold it gets garbage.

Why
    The server hands the tokens that XTC is to leave alone as a list in a list, which raises as
    the first token is drawn, in the thread that all requests share. Of the tokens that end an
    answer it names one. Where no threshold is asked for it is zero: every token is a top choice,
    and all but the least probable are left out.
How
    The sampler is made of all those tokens in one list, and of a threshold of 0.1 where none is
    named: by a request, or by who calls ``make_sampler``, mlx-vlm's too. A threshold that is
    named stays.
Upstream
    mlx-lm 0.32.0 (issue 1176). ``make_sampler`` of mlx-vlm 0.7.10 is as it was.
Retire when
    No supported release has a threshold of zero.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from ...core.patch import Attribute, Patch, Target, around

# As in mlx-lm 0.32.0, and in the paper.
THRESHOLD = 0.1


class Ends:
    """A tokenizer, whose end of a text is every token that ends one."""

    def __init__(self, tokenizer: Any):
        self._tokenizer = tokenizer
        self.eos_token_id = list(getattr(tokenizer, "eos_token_ids", [tokenizer.eos_token_id]))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


def asked(make: Callable[..., Any], args: Any, tokenizer: Any) -> Any:
    """The sampler of a request to the server."""
    return make(args, Ends(tokenizer))


def made(make_sampler: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A function that draws tokens from log probabilities."""
    call = inspect.signature(inspect.unwrap(make_sampler)).bind(*args, **kwargs)
    given = call.arguments
    given.setdefault("xtc_threshold", THRESHOLD)
    if given.get("xtc_special_tokens"):
        given["xtc_special_tokens"] = flat(given["xtc_special_tokens"])
    return make_sampler(*call.args, **call.kwargs)


def flat(tokens: Iterable[Any]) -> list[int]:
    """Token ids, of those in lists too; each once."""
    lists = (token if isinstance(token, (list, tuple)) else [token] for token in tokens)
    return list(dict.fromkeys(token for one in lists for token in one if token is not None))


def complete(body: Any) -> Any:
    """A request's body, with a threshold where it asks for XTC without one."""
    if isinstance(body, dict) and body.get("xtc_probability") and "xtc_threshold" not in body:
        return {**body, "xtc_threshold": THRESHOLD}
    return body


PATCH = Patch(
    id="server-xtc",
    summary="a request with XTC ends the generation of mlx_lm.server, or gets garbage",
    targets=(
        Target("mlx-lm", "mlx_lm.sample_utils", "make_sampler", around(made)),
        Target("mlx-vlm", "mlx_vlm.sample_utils", "make_sampler", around(made)),
        Target("mlx-lm", "mlx_lm.server", "_make_sampler", around(asked)),
        Target(
            "mlx-lm",
            "mlx_lm.server",
            "APIHandler.body",
            lambda original: Attribute("body", write=complete),
            body=("APIHandler.do_POST",),
            adds=True,
        ),
    ),
    probe="mlx_patches.probes.server_xtc:probe",
    module=__name__,
)
