"""Answers a request with a tool call that has no end marker."""

import dataclasses
from typing import Any

from ....probes.kit import NotApplicable, Result, Target, module_with
from ....probes.lm_server import make_call, post

CALL = "f"


def probe(target: Target) -> Result:
    """Red if the call is lost, however the answer ends, streamed or not."""
    module = module_with(target)
    names = {field.name for field in dataclasses.fields(module.Response)}
    if "state" not in names and not hasattr(module, "make_text_state_machine"):
        raise NotApplicable("this release's responses have no states")
    for end in ("stop", "length"):
        for stream in (False, True):
            calls, reason = call_tools(module, [CALL], closed=False, end=end, stream=stream)
            wanted = ([CALL], "tool_calls" if end == "stop" else end)
            if (calls, reason) != wanted:
                how = f"{end}, {'streamed' if stream else 'not streamed'}"
                return Result(True, f"{how}: calls {calls}, finish_reason {reason!r}")
    return Result(False, "the call is returned")


def call_tools(
    module: Any, texts: list[str], *, closed: bool, end: str, stream: bool
) -> tuple[list[str], str]:
    """The names of the tools that an answer calls, and its finish reason."""
    responses = make_call(module, texts, closed=closed, end=end)
    markers = ("<tool>", "</tool>" if closed else "")
    chunks = post(module, responses, parser=parse, markers=markers, stream=stream)
    choices = [chunk["choices"][0] for chunk in chunks]
    messages = [one.get("message") or one.get("delta") for one in choices]
    calls = [call for message in messages for call in message.get("tool_calls") or ()]
    return [call["function"]["name"] for call in calls], choices[-1]["finish_reason"]


def parse(text: str, tools: Any) -> dict[str, Any]:
    """A tool parser: the text is the tool's name."""
    return {"name": text, "arguments": {}}
