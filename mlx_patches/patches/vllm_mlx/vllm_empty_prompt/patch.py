"""An empty prompt fails every request that vllm-mlx is running.

Why
    A tokenizer that adds no special tokens returns no token for an empty text. The scheduler puts
    the request into the batch all the same, and the batch's next step raises for want of a token:
    every request in it ends with an error.
How
    A request without tokens is refused with HTTP status 400 when it is added to the scheduler.
Upstream
    Not fixed in vllm-mlx 0.6.0.
Retire when
    The scheduler refuses or answers an empty prompt.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from ....core.errors import refusal
from ....core.patch import Patch, Target, around

# How much of a text is tokenized to see whether it has tokens; only if it has none, all of it is.
_BEGINNING = 64


def added(add: Callable[..., Any], scheduler: Any, request: Any) -> Any:
    """Add a request that has tokens; one without any is refused.

    Raises:
        HTTPException: it has none.
    """
    if is_empty(scheduler, request):
        error = importlib.import_module("fastapi").HTTPException
        raise refusal(error(status_code=400, detail="the prompt has no tokens"))
    return add(scheduler, request)


def is_empty(scheduler: Any, request: Any) -> bool:
    """Whether a request's prompt, tokens or a text, has no tokens."""
    tokens = request.prompt_token_ids
    prompt = request.prompt if tokens is None else tokens
    if not isinstance(prompt, str):
        return not len(prompt)
    tokenizer = scheduler.tokenizer
    if not hasattr(tokenizer, "encode"):  # a processor
        tokenizer = tokenizer.tokenizer
    return not len(tokenizer.encode(prompt[:_BEGINNING])) and not len(tokenizer.encode(prompt))


PATCH = Patch(
    id="vllm-empty-prompt",
    severity="crash",
    every_model=True,
    summary="vllm-mlx: an empty prompt fails every running request",
    targets=(Target("vllm-mlx", "vllm_mlx.scheduler", "Scheduler.add_request", around(added)),),
)
