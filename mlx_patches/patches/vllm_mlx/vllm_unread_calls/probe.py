"""Gives vllm-mlx's server an answer with a tool call that cannot be read."""

from typing import Any
from unittest import mock

from ....probes.kit import Result, Target, module_with, require_names

_CALL = '<tool_call>\n{"name": "f", "arguments": {"x": }}\n</tool_call>'
_GOOD = _CALL.replace("}}", "1}}")
_TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


def probe(target: Target) -> Result:
    """Red if the call's text is lost, streamed or not, or an answer without a required call."""
    server: Any = module_with(target)
    require_names(server, "_build_tool_parser", "_extract_streaming_tool_delta")
    with mock.patch.multiple(
        server,
        _enable_auto_tool_choice=True,
        _tool_call_parser="hermes",
        _tool_parser_instance=None,
    ):
        return check(server)


def check(server: Any) -> Result:
    read, request = server._parse_tool_calls_with_parser, make_request(server)
    for text in (_CALL, _GOOD, f"so {_CALL}"):
        for name, (content, calls) in (
            ("text", read(text, request)),
            ("stream", stream(server, text, request)),
        ):
            if bool(calls) is (text != _GOOD) or ("name" in (content or "")) is (text == _GOOD):
                return Result(True, f"{name} of {text!r}: content {content!r}, calls {calls}")
    try:
        read("so", make_request(server, tool_choice="required"))
        return Result(True, "an answer without the required call is accepted")
    except ValueError:
        return Result(False, "no text is lost")


def make_request(server: Any, **fields: Any) -> Any:
    """A chat request with a tool."""
    message = server.Message(role="user", content="hi")
    return server.ChatCompletionRequest(model="m", messages=[message], tools=_TOOLS, **fields)


def stream(server: Any, text: str, request: Any) -> tuple[str, list[Any]]:
    """The content and the calls of a stream, five characters at a time."""
    parser, context = server._build_tool_parser(None), request.model_dump()
    whole = content = ""
    calls: list[Any] = []
    for at in range(0, len(text), 5):
        delta = text[at : at + 5]
        whole, result = server._extract_streaming_tool_delta(parser, whole, delta, context)
        content += (result or {}).get("content") or ""
        calls += (result or {}).get("tool_calls") or []
    return content, calls
