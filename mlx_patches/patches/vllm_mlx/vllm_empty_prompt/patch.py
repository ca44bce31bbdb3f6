"""vllm-mlx, Rapid-MLX: an empty prompt fails every running request.

Why: A tokenizer that adds no special tokens returns no tokens for an empty text. The scheduler
    still adds the request to the batch, whose next step raises: every request in it ends with an
    error. The engines for one request and for images answer it with status 500. vllm-mlx's engine
    for images drops empty messages, until the prompt is empty.
How: An engine or the scheduler refuses a request without tokens with HTTP status 400. An empty
    message is left if no other one is.
Upstream: Not fixed in vllm-mlx 0.6.0 and Rapid-MLX 0.16.10.
Retire when: The scheduler refuses or answers an empty prompt.
"""

import importlib
from types import SimpleNamespace
from typing import Any

from ....core.verbs import Patch, before, refusal, result

# A text is tokenized up to here to check for tokens; the rest only if there are none.
_BEGINNING = 64


def refuse_empty(scheduler: Any, request: Any, /) -> None:
    if is_empty(scheduler, request):
        error = importlib.import_module("fastapi").HTTPException
        raise refusal(error(status_code=400, detail="the prompt has no tokens"))


def refuse_empty_text(engine: Any, /, prompt: Any) -> None:
    refuse_empty(engine, SimpleNamespace(prompt=prompt, prompt_token_ids=None))


def refuse_empty_media(scheduler: Any, /, prompt: Any, images: Any, videos: Any) -> None:
    """Rapid-MLX's scheduler for images; their tokens may be added later."""
    if not (images or videos):
        refuse_empty_text(SimpleNamespace(tokenizer=scheduler.processor), prompt)


def leave_a_message(messages: list[Any]) -> list[Any]:
    return messages or [{"role": "user", "content": ""}]


def is_empty(scheduler: Any, request: Any) -> bool:
    tokens = request.prompt_token_ids
    prompt = request.prompt if tokens is None else tokens
    if not isinstance(prompt, str):
        return not len(prompt)
    tokenizer = scheduler.tokenizer
    if not hasattr(tokenizer, "encode"):  # a processor, or None before the engine starts
        tokenizer = getattr(tokenizer, "tokenizer", None)
    return tokenizer is not None and all(
        tokenizer.encode(text) == [] for text in (prompt[:_BEGINNING], prompt)
    )


PATCH = Patch(
    id="vllm-empty-prompt",
    severity="crash",
    targets=(
        *before(
            (
                "vllm_mlx.scheduler:Scheduler.add_request",
                "rapid_mlx.scheduler:Scheduler.add_request",
            ),
            refuse_empty,
        ),
        *before(
            tuple(
                f"vllm_mlx.engine.{engine}.{name}"
                for engine in ("simple:SimpleEngine", "batched:BatchedEngine")
                for name in ("generate", "stream_generate")
            ),
            refuse_empty_text,
            supports=True,
        ),
        *before("rapid_mlx.mllm_scheduler:MLLMScheduler.add_request", refuse_empty_media),
        *result("vllm_mlx.models.mllm:_build_mllm_chat_messages", leave_a_message, supports=True),
    ),
)
