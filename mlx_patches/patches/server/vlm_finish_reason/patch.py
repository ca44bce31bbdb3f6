"""mlx_vlm.server reports answers that max_tokens cut off as complete.

Why: The server of mlx-vlm 0.5.0 writes ``finish_reason: stop`` in every chat answer that is not
    streamed, even if it was cut off at ``max_tokens``. ``/v1/responses`` writes ``status:
    completed`` in all its answers. Clients and agents use half a program or half a tool call, and
    do not request the rest.
How: The reason of an answer's last token is recorded in the request's generation arguments, which
    its task keeps. If it is ``length``, a choice gets it instead of ``stop``, and a response gets
    ``incomplete``. Tool calls and streamed chats, which are right, keep their reasons. The items of
    a response of mlx-vlm 0.5.0, which lack a type, get one.
Upstream: Chats are fixed in mlx-vlm 0.6.0, responses in mlx-vlm 0.7.10. Servers below 0.5, which
    answer one request at a time, are not repaired.
Retire when: No supported release reports ``completed`` for a response that was cut off.
"""

import importlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

from ....core.verbs import Patch, Target, add, before, result, support
from ..._shared.targets import vlm_server
from ..._shared.vlm_tokens import Tokens

# The reason with which the answer to the task's request has ended; empty until then.
ENDED: ContextVar[list[str] | None] = ContextVar("mlx_patches_ended", default=None)


def record_end(built: Any, request: Any) -> Any:
    """The generation arguments of a request, with a list for the reason of its end."""
    if hasattr(request, "max_output_tokens") or not getattr(request, "stream", False):
        built.ended = []
        ENDED.set(built.ended)
    return built


def note_reason(answer: tuple[Any, Any], args: Any) -> tuple[Any, Any]:
    """The context of a request and its tokens; the reason of the last one is recorded."""
    ended = getattr(args, "ended", None)
    if ended is None:
        return answer
    return answer[0], Tokens(answer[1], note_end(answer[1], ended))


def note_end(tokens: Any, ended: list[str]) -> Iterator[Any]:
    """The tokens of an answer; the reason of its end is recorded."""
    for token in tokens:
        if token.finish_reason:
            ended.append(token.finish_reason)
        yield token


def is_cut() -> bool:
    """Whether the answer to the task's request ended at its limit."""
    return ENDED.get() == ["length"]


def report_cut(response: Any) -> None:
    if is_cut() and response.status == "completed":
        response.status = "incomplete"


def mark_choice(choice: dict[str, Any]) -> None:
    """Name the reason that the answer ended with."""
    if choice.get("finish_reason") == "stop" and is_cut():
        choice["finish_reason"] = "length"


def mark_response(response: dict[str, Any]) -> None:
    """Name the types of the items, and the status."""
    for item in response["output"]:
        if isinstance(item, dict):
            item.setdefault("type", "message")
    if response["status"] == "completed" and is_cut():
        response["status"] = "incomplete"


def mark_event(event: dict[str, Any]) -> None:
    """Name the status in the last event of a stream."""
    report_cut(event["response"])


def define_init(
    place: str, mark: Callable[[dict[str, Any]], None], defect: str = ""
) -> tuple[Target, ...]:
    """The ``__init__`` of a class of answers; ``defect`` names the code that has it."""

    def init(model: Any, /, **fields: Any) -> None:
        mark(fields)
        importlib.import_module("pydantic").BaseModel.__init__(model, **fields)

    targets = add(f"{place}.__init__", init, defect or place.partition(":")[2])
    return targets if defect else support(*targets)


PATCH = Patch(
    id="vlm-finish-reason",
    severity="feature",
    targets=(
        *define_init("mlx_vlm.server:ChatChoice", mark_choice, "chat_completions_endpoint"),
        *define_init("mlx_vlm.server:OpenAIResponse", mark_response, "responses_endpoint"),
        *define_init("mlx_vlm.server.schemas:OpenAIResponse", mark_response, "OpenAIResponse"),
        *define_init("mlx_vlm.server:ResponseCompletedEvent", mark_event),
        *before("mlx_vlm.server.responses_state:_store_response", report_cut, supports=True),
        *result(vlm_server("app", "_build_gen_args"), record_end, supports=True),
        *result(vlm_server("generation", "ResponseGenerator.generate"), note_reason, supports=True),
    ),
)
