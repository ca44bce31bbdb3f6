"""mlx_lm.server with a seed, drafts or --kv-bits: penalties ignore the cached prompt.

Why: A request that is served by itself (a seed, a draft model, ``--kv-bits``) feeds only what its
    prompt has beyond the prompt cache, and its logits processors get only these tokens. The second
    turn of a conversation is penalized differently from the same turn on a fresh server.
How: The processors of a request with penalties are called with the whole prompt.
Upstream: Not fixed in mlx-lm 0.32.2. The server of mlx-lm up to 0.30.5 is not repaired.
Retire when: The server passes the cached tokens to ``stream_generate``.
"""

from typing import Any

from ....core.verbs import Patch, mx, result
from ..._shared.prompt_tokens import add_prompt

_PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")


def keep_prompt(tokenized: Any, generator: Any, tokenizer: Any, request: Any, args: Any, /) -> Any:
    """Keep the tokens of a prompt with the arguments of its request."""
    args.prompt_tokens = tokenized[0] if isinstance(tokenized, tuple) else tokenized
    return tokenized


def show_prompt(processors: Any, args: Any, /) -> Any:
    """The processors of a request, called with its whole prompt."""
    prompt = mx.array(getattr(args, "prompt_tokens", ()), mx.uint32)
    return [add_prompt("server-prefix-penalty", prompt, one) for one in processors]


def has_penalties(args: Any, /) -> bool:
    return any(getattr(args.logits, name, 0) for name in _PENALTIES)


PATCH = Patch(
    id="server-prefix-penalty",
    targets=(
        *result("mlx_lm.server:ResponseGenerator._tokenize", keep_prompt, supports=True),
        *result("mlx_lm.server:_make_logits_processors", show_prompt, when=has_penalties),
    ),
)
