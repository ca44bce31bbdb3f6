"""An empty prompt stops ``mlx_lm.server`` for good.

Why
    A tokenizer that adds no special tokens returns no token for an empty text. Without a token to
    feed, the generation thread raises and ends, and no later request is answered.
How
    A prompt without tokens gets the tokenizer's BOS token or, if it has none, its EOS token, which
    ends the text before.
Upstream
    Not fixed in mlx-lm 0.32.2.
Retire when
    The server answers an empty prompt, or refuses it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....core.patch import Patch, Target, around


def tokenized(
    tokenize: Callable[..., Any], server: Any, tokenizer: Any, *args: Any, **kwargs: Any
) -> Any:
    """The tokens of a request's prompt, at least one; later releases return more beside them."""
    out = tokenize(server, tokenizer, *args, **kwargs)
    prompt = out[0] if isinstance(out, tuple) else out
    if not prompt:
        prompt += beginning(tokenizer)  # in place: the prompt's segments are the same list
    return out


def beginning(tokenizer: Any) -> list[int]:
    """The token that starts a text, as a list; empty if the tokenizer has none."""
    ids = (tokenizer.bos_token_id, tokenizer.eos_token_id)
    return [token for token in ids if token is not None][:1]


PATCH = Patch(
    id="server-empty-prompt",
    severity="crash",
    every_model=True,
    summary="mlx_lm.server hangs for good after an empty prompt",
    targets=(Target("mlx-lm", "mlx_lm.server", "ResponseGenerator._tokenize", around(tokenized)),),
)
