r"""A request with a regular expression in it is refused: its JSON has escapes that are none.

Why
    Some clients of ``/v1/messages`` send tool definitions with ``\s`` or ``\d`` in a string. JSON
    has no such escapes, and the host answers with an error. Optional: the fault is the client's.
How
    A body that does not parse for this reason is parsed with its lone backslashes doubled, where
    the host's web framework parses it: the endpoints are bound to their routes already.
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

from ...core.patch import Patch, Target, around

PATH = "/v1/messages"
# An escape of JSON, or a backslash that is none.
_ESCAPE = re.compile(rb'\\(?:(["\\/bfnrt]|u[0-9a-fA-F]{4})|)')


async def parsed(parse: Any, request: Any) -> Any:
    """A request's body."""
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
    summary="a message with a backslash that JSON does not know is refused",
    targets=(
        Target(
            "vllm-mlx",
            "starlette.requests",
            "Request.json",
            around(lambda parse, request: parsed(parse, request)),
        ),
    ),
    probe="mlx_patches.probes.json_escapes:probe",
    module=__name__,
    optional=True,
)
