"""Runs a call in a new thread, like servers run a model."""

from collections.abc import Callable
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any


def in_a_thread(call: Callable[[], Any]) -> Any:
    """Do a call in a new thread, which outlives it: MLX may abort if both end at once."""
    answers: SimpleQueue[Any] = SimpleQueue()

    def run() -> None:
        try:
            answers.put(call())
        except Exception as error:
            answers.put(error)
        Event().wait()

    Thread(target=run, daemon=True).start()
    return answers.get()
