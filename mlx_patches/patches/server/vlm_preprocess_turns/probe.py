"""Sends a server two requests at once, with a tokenizer that detects two callers."""

import contextlib
import threading
from types import SimpleNamespace
from typing import Any

from ....probes.kit import Result, Target, class_of, mx, require_own
from ....probes.vlm_server import make_preparing_server

# How long the first caller of the tokenizer waits for a second one, in seconds.
SECONDS = 0.3


class _Tokenizer:
    """A tokenizer that fails, as a fast one may, if two threads call it at once."""

    pad_token = "."
    chat_template = None

    def __init__(self) -> None:
        self._busy = threading.Lock()
        self._second = threading.Event()
        self.failed = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self._busy.acquire(blocking=False):
            self.failed = True
            self._second.set()
            raise RuntimeError("Already borrowed")
        try:
            self._second.wait(SECONDS)
        finally:
            self._busy.release()
        return SimpleNamespace(input_ids=mx.array([[1, 2]]), attention_mask=mx.array([[1, 1]]))


def probe(target: Target) -> Result:
    """Red if a request fails because another is tokenized at the same time."""
    require_own(target)
    server = make_preparing_server(class_of(target), _Tokenizer())

    def send() -> None:
        # The tokenizer's error; or, for a prepared request, a missing queue.
        with contextlib.suppress(Exception):
            server.generate("a prompt")

    threads = [threading.Thread(target=send) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    failed = server.processor.failed
    return Result(failed, "a request failed: Already borrowed" if failed else "both were prepared")
