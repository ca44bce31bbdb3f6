"""mlx_vlm.server reports a complete answer for one that was cut off by max_tokens.

Why: The server of mlx-vlm 0.5.0 writes ``finish_reason: stop`` in every chat answer that is not
    streamed, even if it was cut off at ``max_tokens``. ``/v1/responses`` writes ``status:
    completed`` in all its answers. Clients and agents take half a program or half a tool call for
    a complete one, and do not request the rest.
How: The reason of an answer's last token is recorded in the request's generation arguments, which
    its task keeps. A choice of this task with ``stop`` gets ``length`` if that was the reason, a
    response ``incomplete``. Tool calls and streamed chats, which are right, keep their reasons.
    The items of a response of mlx-vlm 0.5.0, which lack a type, get one.
Upstream: Chats are fixed in mlx-vlm 0.6.0, responses in mlx-vlm 0.7.10. Servers below 0.5, which
    answer one request at a time, are not repaired.
Retire when: No supported release reports ``completed`` for a response that was cut off.
"""

import importlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from ....core.verbs import Patch, Target, before, result
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
    """Mark a response that was cut off."""
    if is_cut() and response.status == "completed":
        response.status = "incomplete"


def init_choice(choice: Any, /, **fields: Any) -> None:
    """A choice's ``__init__``, with the reason that the answer ended with."""
    if fields.get("finish_reason") == "stop" and is_cut():
        fields["finish_reason"] = "length"
    init_model(choice, **fields)


def init_response(response: Any, /, **fields: Any) -> None:
    """A response's ``__init__``, with the type of its items, and its status."""
    fields["output"] = [name_type(one) for one in fields.get("output", ())]
    init_model(response, **fields)
    report_cut(response)


def name_type(item: Any) -> Any:
    """An item of a response, with its type."""
    return {"type": "message", **item} if isinstance(item, dict) else item


def init_event(event: Any, /, **fields: Any) -> None:
    """The ``__init__`` of the last event of a stream, with the response's status."""
    report_cut(fields["response"])
    init_model(event, **fields)


def init_model(model: Any, /, **fields: Any) -> None:
    """The ``__init__`` that the release's classes inherit."""
    pydantic: Any = importlib.import_module("pydantic")
    pydantic.BaseModel.__init__(model, **fields)


def define_init(place: str, init: Any, defect: str = "") -> Target:
    """The ``__init__`` of one of the server's classes, and the code that has the defect."""
    module, _, name = place.partition(":")
    return Target(
        "mlx-vlm",
        module,
        f"{name}.__init__",
        lambda original: init,
        fingerprint_of=(defect or name,),
        defines_new_attribute=True,
        supports=not defect,
    )


PATCH = Patch(
    id="vlm-finish-reason",
    severity="feature",
    every_model=True,
    targets=(
        define_init("mlx_vlm.server:ChatChoice", init_choice, "chat_completions_endpoint"),
        define_init("mlx_vlm.server:OpenAIResponse", init_response, "responses_endpoint"),
        define_init("mlx_vlm.server.schemas:OpenAIResponse", init_response, "OpenAIResponse"),
        define_init("mlx_vlm.server:ResponseCompletedEvent", init_event),
        *before("mlx_vlm.server.responses_state:_store_response", report_cut, supports=True),
        *result(
            ("mlx_vlm.server:_build_gen_args", "mlx_vlm.server.app:_build_gen_args"),
            record_end,
            supports=True,
        ),
        *result(
            (
                "mlx_vlm.server:ResponseGenerator.generate",
                "mlx_vlm.server.generation:ResponseGenerator.generate",
            ),
            note_reason,
            supports=True,
        ),
    ),
)
