r"""Sends vllm-mlx's application a message with ``\d`` in a string, and checks the parsed text."""

import asyncio
from types import ModuleType
from typing import Any
from unittest import mock

from ....probes.kit import Result, Target, make_scope, require_module, require_names

PATHS = ("/v1/messages", "/v1/messages/count_tokens")
_BODY = rb'{"system": "\d \\d \u0041 \n", "messages": []}'
_MEANT = "\\d \\d A \n"


def probe(target: Target) -> Result:
    """Red if an endpoint rejects the message, or parses it wrongly."""
    server = require_module("vllm_mlx.server")
    require_names(server, "create_anthropic_message")
    for path in PATHS:
        got = post_message(server, path, _BODY)
        if got != _MEANT:
            return Result(True, f"{path}: {got}")
    return Result(False, "the invalid escape is read as a backslash")


def post_message(server: ModuleType, path: str, body: bytes) -> Any:
    seen: list[Any] = []

    class Enough(Exception):
        """Stops the endpoint after it has parsed the body."""

    def encode(text: str) -> None:
        seen.append(text)
        raise Enough

    def request(**fields: Any) -> None:
        seen.append(fields["system"])
        raise Enough

    engine = mock.Mock()
    engine.tokenizer.encode = encode
    with (
        mock.patch.object(server, "get_engine", lambda *_: engine),
        mock.patch.object(server, "AnthropicRequest", request),
    ):
        try:
            asyncio.run(send_request(server.app, path, body))
        except Enough:
            return seen[0]
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return "no answer"


async def send_request(app: Any, path: str, body: bytes) -> None:
    half = body.index(b"\\") + 1
    parts = [
        {"type": "http.request", "body": body[:half], "more_body": True},
        {"type": "http.request", "body": body[half:], "more_body": False},
    ]

    async def receive() -> Any:
        return parts.pop(0) if parts else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        pass

    scope = make_scope("POST", path, (b"content-type", b"application/json"))
    await app(scope, receive, send)
