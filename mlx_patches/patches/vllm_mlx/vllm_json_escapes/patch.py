r"""A request that contains a regular expression is refused: its JSON has invalid escapes.

Why
    Some clients of ``/v1/messages`` send tool definitions with ``\s`` or ``\d`` in a string. JSON
    has no such escapes, and the host answers with an error. Optional: the fault is the client's.
How
    A body that fails to parse for this reason is parsed again with its lone backslashes doubled.
    The web framework is patched, because the endpoints are already bound to their routes.
Upstream
    vllm-mlx 0.2.8 fixes the bodies of messages, but not of requests that count tokens; it also
    treats an escaped backslash, as in ``\\d``, as a lone one, and then the request fails.
Retire when
    A supported release distinguishes an escaped backslash from a lone one.
"""

from __future__ import annotations

import json
import re
from typing import Any

from ....core.patch import Patch, Target, around

PATH = "/v1/messages"
# A valid escape of JSON, or a lone backslash.
_ESCAPE = re.compile(rb'\\(?:(["\\/bfnrt]|u[0-9a-fA-F]{4})|)')


async def parsed(parse: Any, request: Any) -> Any:
    """A request's body; parsed again with lone backslashes doubled if they are the error."""
    try:
        return await parse(request)
    except json.JSONDecodeError as error:
        if not request.scope["path"].startswith(PATH) or not error.msg.startswith("Invalid \\"):
            raise
        return json.loads(escaped(await request.body()))


def escaped(body: bytes) -> bytes:
    """The body with its lone backslashes doubled."""
    return _ESCAPE.sub(lambda found: found[0] if found[1] else b"\\\\", body)


PATCH = Patch(
    id="vllm-json-escapes",
    severity="feature",
    summary="vllm-mlx rejects messages with an invalid JSON escape, such as a regular expression",
    targets=(Target("vllm-mlx", "starlette.requests", "Request.json", around(parsed)),),
    optional=True,
)
