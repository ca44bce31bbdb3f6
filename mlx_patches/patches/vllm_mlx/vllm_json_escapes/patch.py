r"""vllm-mlx rejects messages with an invalid JSON escape, such as a regular expression.

Why: Some clients of ``/v1/messages`` send tool definitions with ``\s`` or ``\d`` in a string. JSON
    has no such escapes, and the host answers with an error. Optional: the fault is the client's.
How: A body that fails to parse for this reason is parsed again with its lone backslashes doubled.
    The patch is in the web framework, because the endpoints are already bound to their routes.
Upstream: vllm-mlx 0.2.8 fixes messages, but not requests that count tokens; it also takes an
    escaped backslash, as in ``\\d``, for a lone one, and then the request fails.
Retire when: A supported release distinguishes an escaped backslash from a lone one.
"""

import json
import re
from typing import Any

from ....core.patch import Patch, Target, around

PATH = "/v1/messages"
# A valid escape of JSON, or a lone backslash.
_ESCAPE = re.compile(rb'\\(?:(["\\/bfnrt]|u[0-9a-fA-F]{4})|)')


async def parse_lenient(parse: Any, request: Any) -> Any:
    """A request's body; after an invalid escape it is parsed again with those doubled."""
    try:
        return await parse(request)
    except json.JSONDecodeError as error:
        if not request.scope["path"].startswith(PATH) or not error.msg.startswith("Invalid \\"):
            raise
        return json.loads(double_backslashes(await request.body()))


def double_backslashes(body: bytes) -> bytes:
    return _ESCAPE.sub(lambda found: found[0] if found[1] else b"\\\\", body)


PATCH = Patch(
    id="vllm-json-escapes",
    severity="feature",
    targets=(Target("vllm-mlx", "starlette.requests", "Request.json", around(parse_lenient)),),
    optional=True,
)
