"""The bodies of requests, as servers with FastAPI read them."""

import json
import re
from collections.abc import Callable
from typing import Any

from .callers import RELEASES

# The import package of mlx-openai-server, and its own module that no other application has.
_HOSTS = RELEASES | {"app"}
# A backslash that JSON does not allow.
_LONE_BACKSLASH = re.compile(rb'\\(?!["\\/bfnrtu])')


def find_host(request: Any) -> str:
    """The import package of the host that a request is for; empty for another application."""
    package = getattr(request.scope.get("endpoint"), "__module__", "").partition(".")[0]
    return package if package in _HOSTS else ""


async def read_checked(read: Callable[..., Any], request: Any, check: Callable[[Any], None]) -> Any:
    """Starlette's ``Request.json`` for the endpoints of hosts, with a check of the body."""
    if not find_host(request):
        return await read(request)
    try:
        body = await read(request)
    except json.JSONDecodeError:
        repaired = repair_json(await request.body())
        if repaired is not None:
            check(repaired)
        raise
    check(body)
    return body


def repair_json(text: bytes) -> Any:
    """The body that vllm-mlx makes of one with invalid escapes; None if it makes none."""
    try:
        return json.loads(_LONE_BACKSLASH.sub(rb"\\\\", text))
    except ValueError:
        return None
