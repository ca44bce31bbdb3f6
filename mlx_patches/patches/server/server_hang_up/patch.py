"""mlx_lm.server generates to max_tokens for a client that hung up; others wait.

Why: The server notices a client's end when a write fails, and an answer that is not streamed is
    written once, at its end. Until then the request keeps its row, its caches and its thread, and
    requests that are served one by one, such as seeded ones, wait for it.
How: The client's socket is checked, without waiting, with each token and each chunk of the prompt;
    the generation of a client that has closed it ends. A queued request of such a client is refused
    before it starts. A client that has only closed its sending side counts as gone, as in other
    servers. Distributed generation is unchanged.
Upstream: mlx-lm 677; not fixed in mlx-lm 0.32.2. The server of mlx-lm up to 0.28.3 is not repaired.
Retire when: The server ends each request with its client.
"""

import socket
from collections.abc import Iterator
from typing import Any

from ....core.verbs import Function, Patch, argument, before, refusal, wrap


def keep_client(handler: Any, request: Any, /) -> None:
    if not getattr(handler.response_generator, "_is_distributed", False):
        request.client = handler.connection


def is_gone(client: Any) -> bool:
    """Whether a client has closed its socket."""
    try:
        return not client.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:  # reset, or closed on our side
        return True


def refuse_gone(generator: Any, tokenizer: Any, request: Any, /) -> None:
    client = getattr(request, "client", None)
    if client is not None and is_gone(client):
        raise refusal(ConnectionAbortedError("the client hung up"))


def end_with_client(
    generate: Function,
    generator: Any,
    request: Any,
    args: Any,
    progress_callback: Function | None = None,
) -> tuple[Any, Any]:
    """The context of a request and its responses, which end with the client."""
    client = getattr(request, "client", None)

    def report(*progress: Any) -> None:
        if client is not None and is_gone(client):
            raise ConnectionAbortedError("the client hung up")
        if progress_callback is not None:
            progress_callback(*progress)

    context, responses = generate(generator, request, args, progress_callback=report)
    return context, read_for(client, responses, context.stop)


def read_for(client: Any, responses: Any, stop: Function) -> Iterator[Any]:
    """Yield the responses; stop the generation if the client, or the reader, is gone."""
    try:
        for response in responses:
            if client is not None and is_gone(client):
                break
            yield response
        else:
            return
    except ConnectionAbortedError:
        pass
    except GeneratorExit:
        stop()
        raise
    stop()


class Answers:
    """The queue of a request's responses, which refuses more of them once the client is gone.

    The error ends the generation; the server puts it, like every error, in the same queue.
    """

    def __init__(self, queue: Any, client: Any):
        self.queue, self.client = queue, client

    def put(self, item: Any) -> None:
        """Put a response, the progress of a prompt, an error or the end."""
        is_last = item is None or isinstance(item, Exception)
        if not is_last and is_gone(self.client):
            raise ConnectionAbortedError("the client hung up")
        self.queue.put(item)


def watch_client(request: tuple[Any, ...]) -> tuple[Any, ...]:
    """A queued request, with a queue that ends with the client."""
    queue, wanted, *rest = request
    client = getattr(wanted, "client", None)
    return request if client is None else (Answers(queue, client), wanted, *rest)


PATCH = Patch(
    id="server-hang-up",
    severity="feature",
    targets=(
        *before("mlx_lm.server:APIHandler.handle_completion", keep_client, supports=True),
        *wrap("mlx_lm.server:ResponseGenerator.generate", end_with_client),
        *before("mlx_lm.server:ResponseGenerator._tokenize", refuse_gone, supports=True),
        *argument(
            "mlx_lm.server:ResponseGenerator._serve_single", "request", watch_client, supports=True
        ),
    ),
)
