"""Runs the server's generation loop on two requests that raise, one after the other."""

from queue import Empty, Queue
from types import SimpleNamespace
from typing import Any

from ....probes.kit import Result, Target, class_of


class _Requests(Queue[Any]):
    """A queue that stops the server's loop when it is empty."""

    server: Any = None

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        try:
            return super().get(block=False)
        except Empty:
            self.server._stop = True
            raise


def probe(target: Target) -> Result:
    """Red if either request does not get its error."""
    kind = class_of(target)
    server = kind.__new__(kind)
    server.requests = _Requests()
    server.requests.server = server
    server.model_provider = SimpleNamespace(load_default=lambda: None, reset=lambda: None)
    server.prompt_cache = None
    server._stop = server._is_distributed = False
    answers: list[Queue[Any]] = [Queue(), Queue()]
    for one in answers:
        server.requests.put((one,))  # no valid request: the loop fails to unpack it
    died = ""
    try:
        server._generate()
    except ValueError as error:
        died = f"the loop ended: {error}; "
    failed = sum(any(isinstance(item, ValueError) for item in one.queue) for one in answers)
    detail = f"{died}{failed} of {len(answers)} requests got their error"
    return Result(failed < len(answers), detail)
