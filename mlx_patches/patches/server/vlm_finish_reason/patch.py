"""``mlx_vlm.server`` says of a cut answer that it came to its end.

Why
    The server of mlx-vlm 0.5.0 writes ``finish_reason: stop`` in each chat answer that is not
    streamed, also in one that ended at ``max_tokens``. Clients and agents take half a program or
    half a tool call for a whole one, and do not ask for the rest.
How
    The reason of the last token of an answer is noted with the request's generation arguments,
    which its task remembers. A choice of this task that says ``stop`` says ``length`` where that
    was the reason. Tool calls keep theirs, and so do streamed answers, which are right.
Upstream
    Fixed in mlx-vlm 0.6.0. The servers below 0.5, which answer one request at a time, are not
    repaired.
Retire when
    mlx-vlm 0.5.0 is no longer supported.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import partial
from typing import Any

from ....core.patch import Patch, Target, around
from ..._shared.vlm_server import find_generation_arguments

# The reasons with which the answer to the task's request has ended: one, or none yet.
ENDED: ContextVar[list[str] | None] = ContextVar("mlx_patches_ended", default=None)


def arguments(build: Callable[..., Any], request: Any, *args: Any, **options: Any) -> Any:
    """The generation arguments of a request, with a place for the reason of its end."""
    built = build(request, *args, **options)
    if not getattr(request, "stream", False):
        built.ended = []
        ENDED.set(built.ended)
    return built


def note_reason(
    generate: Callable[..., tuple[Any, Any]], server: Any, *args: Any, **options: Any
) -> tuple[Any, Any]:
    """The context of a request and its tokens; the reason of the last one is noted."""
    context, tokens = generate(server, *args, **options)
    ended = getattr(find_generation_arguments(server, *args, **options), "ended", None)
    return context, tokens if ended is None else Noted(tokens, ended)


class Noted:
    """The tokens of an answer. It can be closed like those of the release."""

    def __init__(self, tokens: Any, ended: list[str]):
        self.close = tokens.close
        self._tokens, self._ended = tokens, ended

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        token = next(self._tokens)
        if token.finish_reason:
            self._ended.append(token.finish_reason)
        return token


def choose(choice: Any, **fields: Any) -> None:
    """A choice's ``__init__``, with the reason for which the answer ended."""
    if fields.get("finish_reason") == "stop" and ENDED.get() == ["length"]:
        fields["finish_reason"] = "length"
    pydantic: Any = importlib.import_module("pydantic")
    pydantic.BaseModel.__init__(choice, **fields)


_SERVER = partial(Target, "mlx-vlm", "mlx_vlm.server")

PATCH = Patch(
    id="vlm-finish-reason",
    severity="feature",
    every_model=True,
    summary="mlx_vlm.server reports `stop`, not `length`, for answers cut off by max_tokens",
    targets=(
        _SERVER(
            "ChatChoice.__init__",
            lambda original: choose,
            fingerprint_of=("chat_completions_endpoint",),
            defines_new_attribute=True,
        ),
        _SERVER("_build_gen_args", around(arguments), supports=True),
        _SERVER("ResponseGenerator.generate", around(note_reason), supports=True),
    ),
)
