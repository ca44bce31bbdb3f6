r"""A request with a regular expression in it is refused: its JSON has escapes that are none.

Why
    Some clients of ``/v1/messages`` send tool definitions with ``\s`` or ``\d`` in a string. JSON
    has no such escapes, and the host answers with an error. Optional: the fault is the client's.
How
    A body that does not parse for this reason gets its lone backslashes doubled, before the
    host's application reads it.
Upstream
    From vllm-mlx 0.2.8 on messages are mended, not the bodies whose tokens are counted; a
    backslash that was escaped, as in ``\\d``, counts as a lone one there, and the request fails.
Retire when
    A supported release tells an escaped backslash from a lone one.
"""

from __future__ import annotations

import json
import re
from typing import Any

import wrapt

from ..._patch import Patch, Target

PATH = "/v1/messages"
# An escape of JSON, or a backslash that is none.
_ESCAPE = re.compile(rb'\\(?:(["\\/bfnrt]|u[0-9a-fA-F]{4})|)')


class Lenient(wrapt.ObjectProxy):  # type: ignore[type-arg]
    """The host's ASGI application, for bodies with lone backslashes too."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request."""
        if scope["type"] == "http" and scope["path"].startswith(PATH):
            receive = ahead(await whole(receive), receive)
        await self.__wrapped__(scope, receive, send)


async def whole(receive: Any) -> Any:
    """A request's body as one message, its lone backslashes doubled."""
    message = await receive()
    body = message.get("body", b"")
    while message.get("more_body"):
        message = await receive()
        body += message.get("body", b"")
    return {**message, "body": escaped(body)} if message["type"] == "http.request" else message


def ahead(message: Any, receive: Any) -> Any:
    """A ``receive`` that gives this message first."""
    pending = [message]

    async def replay() -> Any:
        return pending.pop() if pending else await receive()

    return replay


def escaped(body: bytes) -> bytes:
    """The body, so that it parses if lone backslashes are all that is wrong."""
    try:
        json.loads(body)
    except json.JSONDecodeError as error:
        if error.msg.startswith("Invalid \\"):
            return _ESCAPE.sub(lambda found: found[0] if found[1] else b"\\\\", body)
    except UnicodeDecodeError:
        pass
    return body


PATCH = Patch(
    id="vllm-json-escapes",
    summary="a message with a backslash that JSON does not know is refused",
    targets=(
        Target(
            "vllm-mlx",
            "vllm_mlx.server",
            "app",
            Lenient,
            body=("create_anthropic_message", "count_anthropic_tokens"),
        ),
    ),
    probe="mlx_patches.probes.json_escapes:probe",
    module=__name__,
    optional=True,
)
