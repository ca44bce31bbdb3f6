"""The tokens of an answer of mlx-vlm's server, which a patch changes on their way."""

from collections.abc import Iterator
from typing import Any


class Tokens:
    """Changed tokens of an answer.

    Unlike a generator, they can be closed while another thread waits for the next one. That is how
    the server cancels a request whose client has gone.
    """

    def __init__(self, released: Any, changed: Iterator[Any]):
        self.close = released.close
        self._changed = changed

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._changed)
