"""mlx_lm.server: a malformed tool call ends the whole answer.

Why: The server drops a tool call if its parser raises ValueError. ``longcat``'s parser raises
    AttributeError for almost any incomplete call; others return a call without ``arguments``, no
    call at all, or a value that JSON lacks. Each of these aborts the request: the client gets no
    answer, and a stream breaks off.
How: The formatter gets a parser that drops such a call and logs a warning, as the server does after
    a ValueError from mlx-lm 0.31.3 on. Missing ``arguments`` become ``{}``.
Upstream: Not fixed in mlx-lm 0.32.2. Releases without ``ToolCallFormatter`` (up to 0.31.1) are not
    repaired: their handler parses elsewhere.
Retire when: ``ToolCallFormatter`` handles any error of its parser.
"""

import json
import logging
from typing import Any

from ....core.verbs import Function, Patch, argument

logger = logging.getLogger("mlx_patches")


def guard_parser(tool_parser: Function) -> Function:
    """A parser that returns a list of calls that can be sent; an empty one if it fails."""

    def parse_or_drop(*args: Any, **kwargs: Any) -> list[dict[str, Any]]:
        try:
            parsed = tool_parser(*args, **kwargs)
            calls = parsed if isinstance(parsed, list) else [parsed]
            return [complete_call(call) for call in calls]
        except Exception as error:
            logger.warning("mlx_patches: dropped a malformed tool call: %r", error)
            return []

    return parse_or_drop


def complete_call(call: Any) -> dict[str, Any]:
    """A call whose arguments can be sent as JSON."""
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        raise ValueError("not a tool call")
    arguments = call.get("arguments")
    if arguments is None:
        return {**call, "arguments": {}}
    try:
        json.dumps(arguments)
    except (TypeError, RecursionError) as error:
        raise ValueError(f"the arguments of {call['name']} are not JSON: {error}") from error
    return call


PATCH = Patch(
    id="server-tool-errors",
    severity="crash",
    targets=argument(
        "mlx_lm.server:ToolCallFormatter.__init__",
        "tool_parser",
        guard_parser,
        fingerprint_of=("ToolCallFormatter.__call__", "ToolCallFormatter._format"),
    ),
)
