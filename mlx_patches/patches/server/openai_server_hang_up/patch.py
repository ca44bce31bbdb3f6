"""mlx-openai-server generates to the end for a client that has hung up.

Why: The handler's process looks for clients that have left only if no chunk comes for 0.1 s, so a
    stream goes on. A request that is not streamed is never ended.
How: A stream ends at the next chunk after its client has left. An answer that is not streamed is
    fetched as a stream of one chunk, which ends when the server's process sees the client leave.
Upstream: Not fixed in mlx-openai-server 1.8.1.
Retire when: The server cancels requests of clients that have hung up.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from contextvars import ContextVar
from typing import Any

from ....core.verbs import Function, Patch, argument, before, refusal, wrap
from ..._shared.refusals import client_error

# The HTTP request that a task answers.
_REQUEST: ContextVar[Any] = ContextVar("mlx_patches_openai_request")
# The field of a request whose whole answer is one chunk.
_WHOLE = "mlx_patches_whole"


async def end_when_cancelled(stream: Any, should_cancel: Callable[[], bool]) -> AsyncIterator[Any]:
    """The chunks of a stream up to the one after its request was cancelled."""
    async with aclosing(stream):
        async for chunk in stream:
            if should_cancel():
                return
            yield chunk


def is_whole(request: Any) -> bool:
    """Whether the answer to a request is one chunk."""
    return getattr(request, _WHOLE, False) is True


async def stream_whole(released: Function, handler: Any, request: Any) -> AsyncIterator[Any]:
    """The whole answer as one chunk."""
    yield await handler.generate_text_response(request)


def note_request(raw_request: Any) -> None:
    """Note the HTTP request for which a handler is looked up."""
    _REQUEST.set(raw_request)


async def answer_until_left(released: Function, proxy: Any, request: Any) -> Any:
    """The answer of the handler's process, unless the client leaves before."""
    sent = _REQUEST.get(None)
    if sent is None:
        return await released(proxy, request)
    whole = request.model_copy(update={_WHOLE: True})
    answer = asyncio.ensure_future(take_whole(proxy._call_stream("generate_text_stream", whole)))
    left = asyncio.ensure_future(sent.receive())
    try:
        await asyncio.wait((answer, left), return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            return answer.result()
        raise client_error("the client has hung up")
    except Exception as error:  # the handler's, which would answer again
        raise refusal(error) from None
    finally:
        answer.cancel()
        left.cancel()


async def take_whole(chunks: Any) -> Any:
    """The answer in a stream of one chunk, which is read to the end, or closed."""
    async with aclosing(chunks):
        (answer,) = [chunk async for chunk in chunks]
    return answer


_PROCESS = "app.core.handler_process"

PATCH = Patch(
    id="openai-server-hang-up",
    severity="feature",
    targets=(
        *argument(f"{_PROCESS}:_stream_until_cancelled", "stream", end_when_cancelled),
        *wrap(
            f"{_PROCESS}:HandlerProcessProxy.generate_text_response",
            answer_until_left,
            supports=True,
        ),
        *before("app.api.endpoints:_resolve_handler", note_request, supports=True),
        *wrap(
            "app.handler.mlx_lm:MLXLMHandler.generate_text_stream",
            stream_whole,
            when=is_whole,
            supports=True,
        ),
    ),
)
