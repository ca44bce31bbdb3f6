"""Requests parameters that the server does not implement, and one with an invalid value."""

from typing import Any

from ....probes.kit import NotApplicable, Result, Target, module_with
from ....probes.lm_server import (
    CHAT,
    make_context,
    make_generator,
    make_handler,
    make_response,
    post,
    send_text,
)

_IGNORED: dict[str, Any] = {
    "n": 2,
    "response_format": {"type": "json_object"},
    "tool_choice": "required",
    "typical_p": 0.5,
    "stop_token_ids": [3],
}


def probe(target: Target) -> Result:
    """Red if a parameter is ignored, or an invalid value gets no reply."""
    module: Any = module_with(target)
    if not hasattr(module, "ResponseGenerator"):
        raise NotApplicable("this release's handler generates by itself")
    if target.name.endswith("do_POST"):
        refused = find_error(module, temperature="hot")
        if "temperature" not in refused:
            return Result(True, f"an invalid temperature gets {refused!r}")
        generator = make_generator(module, make_context(module), [])
        for text in (b"\xff", b"[" * 200_000):
            send_text(make_handler(module, generator, CHAT), text)
        return Result(False, "invalid bodies and values are refused")
    for name, value in _IGNORED.items():
        if name not in find_error(module, **{name: value}):
            return Result(True, f"{name}: {value!r} is ignored")
    return Result(False, "these parameters are refused")


def find_error(module: Any, **body: Any) -> str:
    """The error that a request gets; empty if it gets an answer."""
    (reply,) = post(module, [make_response(module, 1, "a", finish_reason="length")], **body)
    return str(reply.get("error", ""))
