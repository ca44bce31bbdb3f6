"""vllm-mlx loses the answer if it cannot parse a tool call, and ignores a forced tool_choice.

Why: The parsers remove each call's text, also of one that they cannot read, and hold it back in a
    stream. The client then gets neither a call nor a text. ``tool_choice: "required"``, or the name
    of a function, only adds a sentence to the prompt: an answer without a call is accepted.
How: An answer in which no call is found is returned as text, and text that a parser holds back in a
    stream follows as content if it is no call. If ``tool_choice`` requires a call and the model
    makes none, the request fails with status 400, a stream with an error.
Upstream: Not fixed in vllm-mlx 0.6.0.
Retire when: The server returns the text of a call that it cannot read, and checks ``tool_choice``.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

from ....core.verbs import Patch, result, wrap
from ..._shared.refusals import client_error


def read_calls(found: tuple[Any, Any], output_text: str, request: Any) -> tuple[Any, Any]:
    """The text and the calls of an answer; all of it is text if there is no call."""
    text, calls = found
    if not calls:
        if is_forced(request):
            raise make_error()
        text = output_text
    return text, calls


def is_forced(request: Any) -> bool:
    """Whether a request's ``tool_choice`` requires a call."""
    choice = getattr(request, "tool_choice", None)
    return bool(getattr(request, "tools", None)) and (
        choice == "required" or isinstance(choice, dict)
    )


def make_error() -> Exception:
    """The error for a request whose answer lacks the call."""
    return client_error("tool_choice requires a tool call; the model made none")


def pass_text(
    released: Callable[..., Any], parser: Any, previous_text: str, delta_text: str, *args: Any
) -> tuple[str, Any]:
    """The whole text of a stream and the parser's result, with text that was held back."""
    text, result = released(parser, previous_text, delta_text, *args)
    state = vars(parser).setdefault("_mlx_patches_held", {"texts": [], "called": False})
    if result is None:
        state["texts"].append(delta_text)
    elif result.get("tool_calls"):
        state["called"] = True
    elif result.get("content") == delta_text and not state["called"]:
        result = {**result, "content": "".join([*state["texts"], delta_text])}
        state["texts"].clear()
    return text, result


def end_text(released: Callable[..., Any], parser: Any, *args: Any) -> Any:
    """The parser's result at the end of a stream, or the text that it still holds back."""
    result = released(parser, *args)
    state = vars(parser).get("_mlx_patches_held")
    if result is None and state and not state["called"]:
        return {"content": "".join(state["texts"])}
    return result


async def check_stream(outputs: Any) -> AsyncIterator[str]:
    """A stream that must have a call."""
    called = False
    async with aclosing(outputs):
        async for event in outputs:
            called = called or '"tool_calls":[' in event
            if _DONE in event and not called:
                raise make_error()
            yield event


# The event after which clients read no more.
_DONE = "data: [DONE]"
_SERVER = "vllm_mlx.server"

PATCH = Patch(
    id="vllm-unread-calls",
    targets=(
        *result(f"{_SERVER}:_parse_tool_calls_with_parser", read_calls),
        *wrap(f"{_SERVER}:_extract_streaming_tool_delta", pass_text, supports=True),
        *wrap(f"{_SERVER}:_finalize_streaming_tool_result", end_text, supports=True),
        *result(f"{_SERVER}:stream_chat_completion", check_stream, when=is_forced, supports=True),
    ),
)
