"""Answers a request with a tool call that the parser cannot read."""

from typing import Any

from ....probes.kit import Result, Target, module_with
from ....probes.lm_server import make_call, post

UNREADABLE = "{broken"


def probe(target: Target) -> Result:
    """Red if the text of the call is lost, or the answer ends with a call that it lacks."""
    module = module_with(target)
    for stream in (False, True):
        text, calls, reason = call_tools(module, [UNREADABLE], stream=stream)
        if (text, calls, reason) != (UNREADABLE, [], "stop"):
            how = "streamed" if stream else "not streamed"
            return Result(True, f"{how}: text {text!r}, calls {calls}, finish_reason {reason!r}")
    return Result(False, "the text of the call is returned")


def call_tools(
    module: Any, texts: list[str], *, stream: bool, before: str = "", end: str = "stop", **body: Any
) -> tuple[str, list[str], str]:
    """The text of an answer, the names of the tools that it calls, and its finish reason."""
    responses = make_call(module, texts, before=before, end=end)
    chunks = post(module, responses, parser=parse, stream=stream, **body)
    choices = [chunk["choices"][0] for chunk in chunks]
    messages = [one.get("message") or one.get("delta") for one in choices]
    text = "".join(message.get("content") or "" for message in messages)
    calls = [call for message in messages for call in message.get("tool_calls") or ()]
    return text, [call["function"]["name"] for call in calls], choices[-1]["finish_reason"]


def parse(text: str, tools: Any) -> dict[str, Any]:
    """A tool parser: the text is the tool's name.

    Raises:
        ValueError: it is unreadable.
    """
    if text == UNREADABLE:
        raise ValueError(text)
    return {"name": text, "arguments": {}}
