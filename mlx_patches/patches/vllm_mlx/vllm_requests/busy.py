"""vllm-mlx's simple engine, if busy: streams and /v1/responses get an internal error, not 503.

Why: The simple engine serves one request at a time, and rejects others with an error that only
    ``/v1/chat/completions`` and ``/v1/completions`` turn into status 503. A stream ends with
    "Internal server error", and the other endpoints answer with status 500: clients do not retry.
    A stream of ``/v1/responses`` that fails ends without an answer, and up to vllm-mlx 0.4.1
    any stream ends like a whole answer.
How: The error is one that every endpoint answers with status 503 and its text. A stream that fails
    sends its error before its end. ``VLLM_MLX_SIMPLE_ENGINE_LOCK_ADMISSION=wait`` makes requests
    wait instead.
Upstream: vllm-mlx 0.6.0 sends errors in streams; the status is not fixed in it.
Retire when: Every endpoint answers a busy engine's error with status 503.
"""

import importlib
import json
from collections.abc import AsyncIterator
from typing import Any

from ....core.verbs import Patch, argument, result
from ..._shared.refusals import answer_with
from .outputs import SIMPLE


class Slot:
    """A request's turn in the engine."""

    def __init__(self, slot: Any):
        self.slot = slot

    async def __aenter__(self) -> Any:
        busy: Any = importlib.import_module("vllm_mlx.engine.base").EngineBusy
        try:
            return await self.slot.__aenter__()
        except busy as error:
            raise answer_with(503, busy)(str(error)) from None

    async def __aexit__(self, *error: Any) -> Any:
        return await self.slot.__aexit__(*error)


def answer_busy(slot: Any) -> Slot:
    """A turn that every endpoint can refuse."""
    return Slot(slot)


async def report_error(generator: AsyncIterator[str], terminal_frame: str) -> AsyncIterator[str]:
    """Yield a stream's chunks, then its error as an event of the stream's API."""
    try:
        async for chunk in generator:
            yield chunk
    except Exception as error:
        # Only errors with a status are written for clients.
        code = getattr(error, "status_code", 500)
        reason = str(getattr(error, "detail", "Internal server error"))
        content = {"type": "error", "error": {"message": reason, "type": "api_error", "code": code}}
        name = "event: error\n" if terminal_frame.startswith("event:") else ""
        yield f"{name}data: {json.dumps(content)}\n\n"
        raise


def report_response(stream: AsyncIterator[str]) -> AsyncIterator[str]:
    """A stream of ``/v1/responses``, whose errors the server only logs."""
    return report_error(stream, "event:")


PATCH = Patch(
    id="vllm-simple-busy",
    severity="feature",
    probe=".probe_busy:probe",
    targets=(
        *result(f"{SIMPLE}._acquire_generation_slot", answer_busy),
        *argument("vllm_mlx.server:_ensure_sse_terminal", "generator", report_error),
        *result("vllm_mlx.server:_stream_responses_request", report_response),
    ),
)
