"""mlx_vlm.server keeps generating an answer after its client has hung up.

Why: A streamed request ends when its client hangs up. One that is not streamed is collected in a
    thread that is never ended: its row stays in the batch up to ``max_tokens``, and slows down the
    others. In mlx-vlm 0.5 a stream goes on too: its tokens cannot be closed while a thread waits
    for the next one.
How: When the body of a request that is not streamed is read, a task waits for the client to
    disconnect, and then closes the request's tokens. The release cancels the row, as it does for a
    stream. With the patch, the tokens of mlx-vlm 0.5 can be closed at any time.
Upstream: Not fixed in mlx-vlm 0.7.10.
Retire when: The server cancels requests of clients that have hung up.
"""

import asyncio
import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from functools import partial
from typing import Any

from ....core.verbs import Function, Patch, result, wrap


class Client:
    """The client of a request, and the answers that are generated for it."""

    def __init__(self) -> None:
        self.gone = False
        self.answers: list[Any] = []
        self.watch: Any = None  # the task, which would end without a reference

    def add(self, tokens: Any) -> None:
        """Note the tokens of an answer; they end if the client has gone."""
        self.answers.append(tokens)
        if self.gone:
            tokens.close()

    def leave(self) -> None:
        """End the answers of a client that has hung up."""
        self.gone = True
        for tokens in self.answers:
            tokens.close()


# Of the request that a task or its threads handle.
CLIENT: ContextVar[Client | None] = ContextVar("mlx_patches_client", default=None)


async def read_body(read: Function, request: Any) -> Any:
    """Starlette's ``Request.json``, which reads the body of each request."""
    body = await read(request)
    endpoint = request.scope.get("endpoint")
    if getattr(endpoint, "__module__", "").startswith("mlx_vlm.server") and is_collected(body):
        client = Client()
        CLIENT.set(client)
        client.watch = asyncio.ensure_future(watch(request.receive, client))
    return body


def is_collected(body: Any) -> bool:
    """Whether the answer to a request is sent when it is complete, and only to its client."""
    return isinstance(body, dict) and not (body.get("stream") or body.get("background"))


async def watch(receive: Function, client: Client) -> None:
    """Wait until the client hangs up, or has its answer."""
    with contextlib.suppress(Exception):  # nobody reads the task's error
        message = await receive()
        if message["type"] == "http.disconnect":
            client.leave()


def note_tokens(answer: tuple[Any, Any]) -> tuple[Any, Any]:
    """The context of a request and its tokens, which end when its client leaves."""
    client = CLIENT.get()
    if client is not None:
        client.add(answer[1])
    return answer


class Closable:
    """Tokens that can be closed while another thread waits for the next one."""

    def __init__(self, tokens: Any, cancel: Function):
        self._tokens, self._cancel = tokens, cancel
        self._ended = False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        token = next(self._tokens)
        self._ended = bool(getattr(token, "finish_reason", None))
        return token

    def close(self) -> None:
        """Cancel the answer unless it is complete; the waiting thread gets its end."""
        if not self._ended:
            self._cancel()


def make_closable(answer: tuple[Any, Any], server: Any, /) -> tuple[Any, Any]:
    """The context of a request, and tokens that can be closed at any time."""
    context, tokens = answer
    return note_tokens((context, Closable(tokens, partial(server._cancel, context.uid))))


PATCH = Patch(
    id="vlm-hang-up",
    severity="feature",
    targets=(
        *result("mlx_vlm.server:ResponseGenerator.generate", make_closable),
        *result("mlx_vlm.server.generation:ResponseGenerator.generate", note_tokens),
        *wrap("starlette.requests:Request.json", read_body, supports=True),
    ),
)
