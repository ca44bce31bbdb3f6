"""mlx_lm.server hangs for good after a request that raises in a batch.

Why: Nothing between the batch and the generation thread catches an error: out of memory, a prompt
    that the model cannot process, a cache that cannot be joined. The thread ends. Later requests
    hang or, from 0.32.2 on, get an error that the thread died.
How: The requests taken from the queue get the error as their answer, and generation restarts with
    an empty batch; the model and the prompt cache stay. An error before any request was taken still
    ends the thread, and so does any error in distributed generation. A request whose ``stop`` is
    not text is refused before it joins a batch.
Upstream: Not fixed in mlx-lm 0.32.2.
Retire when: The generation thread survives an error in a batch.
"""

import logging
import weakref
from collections.abc import Callable, Iterable
from queue import Queue
from typing import Any

from ....core.handed import hand_over
from ....core.verbs import Patch, wrap
from ..._shared.stop_strings import find_stop_fault

logger = logging.getLogger("mlx_patches")


class Taken:
    """Takes requests from a server's queue, and records the queues of open answers.

    It holds these queues weakly: a client's thread that has its answer drops its queue.
    """

    def __init__(self) -> None:
        self.answers: weakref.WeakSet[Queue[Any]] = weakref.WeakSet()
        self.has_taken = False

    def get(self, take: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The next request that can join others: (queue of its answer, request, arguments)."""
        request = take(*args, **kwargs)
        # The server checks the other arguments, but encodes stop words next to the batch.
        while fault := find_stop_fault(getattr(request[-1], "stop_words", [])):
            request[0].put(ValueError(fault))
            request = take(*args, **kwargs)
        self.answers.add(request[0])
        self.has_taken = True
        return request

    def clear(self) -> list[Queue[Any]]:
        """Forget the requests that were taken; returns the queues of their answers."""
        answers = list(self.answers)
        self.answers.clear()
        self.has_taken = False
        return answers


def restart_after_errors(generate: Callable[[Any], None], server: Any) -> None:
    """Run the loop of the generation thread, and restart it after an error in a batch."""
    requests = server.requests
    taken = Taken()
    requests.get = hand_over("server-batch-error", taken.get, requests.get)
    try:
        while True:
            try:
                return generate(server)
            except Exception as error:
                if not taken.has_taken or getattr(server, "_is_distributed", False):
                    raise
                logger.exception("mlx_patches: a batch of requests failed; the server goes on")
                # The traceback would keep the batch's caches alive.
                failure = error.with_traceback(None)
            send_error(taken.clear(), failure)
    finally:
        del requests.get


def send_error(answers: Iterable[Queue[Any]], error: Exception) -> None:
    """Put the error in the queues; a client that has its whole answer does not read it."""
    for one in answers:
        one.put(error)


PATCH = Patch(
    id="server-batch-error",
    severity="crash",
    targets=wrap("mlx_lm.server:ResponseGenerator._generate", restart_after_errors),
)
