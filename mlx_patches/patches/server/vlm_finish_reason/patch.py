"""mlx_vlm.server reports `stop`, not `length`, for answers cut off by max_tokens.

Why: The server of mlx-vlm 0.5.0 writes ``finish_reason: stop`` in every chat answer that is not
    streamed, even if it was cut off at ``max_tokens``. Clients and agents take half a program or
    half a tool call for a complete one, and do not request the rest.
How: The reason of an answer's last token is recorded in the request's generation arguments, which
    its task keeps. A choice of this task with ``stop`` gets ``length`` if that was the reason. Tool
    calls and streamed answers, which are right, keep their reasons.
Upstream: Fixed in mlx-vlm 0.6.0. Servers below 0.5, which answer one request at a time, are not
    repaired.
Retire when: mlx-vlm 0.5.0 is no longer supported.
"""

import importlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from ....core.verbs import Patch, Target, result

# The reason with which the answer to the task's request has ended; empty until then.
ENDED: ContextVar[list[str] | None] = ContextVar("mlx_patches_ended", default=None)


def record_end(built: Any, request: Any) -> Any:
    """The generation arguments of a request, with a list for the reason of its end."""
    if not getattr(request, "stream", False):
        built.ended = []
        ENDED.set(built.ended)
    return built


def note_reason(answer: tuple[Any, Any], args: Any) -> tuple[Any, Any]:
    """The context of a request and its tokens; the reason of the last one is recorded."""
    ended = getattr(args, "ended", None)
    return answer if ended is None else (answer[0], NotedTokens(answer[1], ended))


class NotedTokens:
    """The tokens of an answer, which can be closed like the release's."""

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


def init_choice(choice: Any, **fields: Any) -> None:
    """A choice's ``__init__``, with the reason that the answer ended with."""
    if fields.get("finish_reason") == "stop" and ENDED.get() == ["length"]:
        fields["finish_reason"] = "length"
    pydantic: Any = importlib.import_module("pydantic")
    pydantic.BaseModel.__init__(choice, **fields)


PATCH = Patch(
    id="vlm-finish-reason",
    severity="feature",
    every_model=True,
    targets=(
        Target(
            "mlx-vlm",
            "mlx_vlm.server",
            "ChatChoice.__init__",
            lambda original: init_choice,
            fingerprint_of=("chat_completions_endpoint",),
            defines_new_attribute=True,
        ),
        *result("mlx_vlm.server:_build_gen_args", record_end, supports=True),
        *result("mlx_vlm.server:ResponseGenerator.generate", note_reason, supports=True),
    ),
)
