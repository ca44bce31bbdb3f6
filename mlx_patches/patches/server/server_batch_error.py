"""A request that raises in a batch stops ``mlx_lm.server`` for good.

Why
    Nothing between the batch and the generation thread catches an error: out of memory, a prompt
    that a model cannot take, a cache that cannot be joined. The thread ends. Later requests wait
    for ever, or, from 0.32.2 on, are told that the thread died.
How
    The requests that were taken get the error as their answer, and generation starts over with
    an empty batch; the model and the prompt cache stay. An error before any request was taken
    ends the thread as before, and so does any where several machines generate together. A
    request with a `stop` that is no text is told so before it can end a batch of others.
Upstream
    Not fixed in mlx-lm 0.32.2.
Retire when
    The generation thread outlives an error of a batch.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable
from queue import Queue
from typing import Any

from ...core.patch import Patch, Target, around

logger = logging.getLogger("mlx_patches")


class Taken:
    """A server's queue of requests, which notes the answers that were not given yet.

    Holds the answers' queues weakly: a client's thread that has its answer drops it.
    """

    def __init__(self, requests: Queue[Any]):
        self.take = requests.get
        self.answers: weakref.WeakSet[Queue[Any]] = weakref.WeakSet()
        self.any = False

    def get(self, *args: Any, **kwargs: Any) -> Any:
        """The next request that can join others: (queue of its answer, request, arguments)."""
        request = self.take(*args, **kwargs)
        while (error := refusal(request)) is not None:
            request[0].put(error)
            request = self.take(*args, **kwargs)
        self.answers.add(request[0])
        self.any = True
        return request

    def clear(self) -> list[Queue[Any]]:
        """Forget what was taken; returns where it is waited for."""
        answers = list(self.answers)
        self.answers.clear()
        self.any = False
        return answers


def refusal(request: tuple[Any, ...]) -> ValueError | None:
    """Why a request would end the batch that it joins.

    The server checks the types of the other arguments; stop words it encodes beside the batch.
    """
    words = getattr(request[-1], "stop_words", ())
    if isinstance(words, Iterable) and all(isinstance(word, str) for word in words):
        return None
    return ValueError("stop must be a text or a list of texts")


def generating(generate: Callable[[Any], None], server: Any) -> None:
    """The loop of the generation thread, again after each error of a batch."""
    requests = server.requests
    taken = Taken(requests)
    requests.get = taken.get
    try:
        while True:
            try:
                return generate(server)
            except Exception as error:
                if not taken.any or getattr(server, "_is_distributed", False):
                    raise
                logger.exception("mlx_patches: requests failed in a batch; the server goes on")
                # Its traceback would keep the batch's caches while clients are told.
                failure = error.with_traceback(None)
            answer(taken.clear(), failure)
    finally:
        del requests.get


def answer(answers: Iterable[Queue[Any]], error: Exception) -> None:
    """Tell who waits; whoever has the whole answer does not read on."""
    for one in answers:
        one.put(error)


PATCH = Patch(
    id="server-batch-error",
    summary="a request that raises in a batch stops mlx_lm.server for good",
    targets=(Target("mlx-lm", "mlx_lm.server", "ResponseGenerator._generate", around(generating)),),
    probe="mlx_patches.probes.server_batch_error:probe",
    module=__name__,
)
