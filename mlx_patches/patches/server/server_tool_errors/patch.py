"""A tool call that a model writes wrongly ends the answer of mlx_lm.server.

Why
    The server leaves a tool call out if its parser raises ValueError. ``longcat``'s parser raises
    AttributeError for nearly everything that is not a whole call, others return a call without
    ``arguments``, no call at all, or a value that JSON does not have. Each ends the request in the
    middle: the client gets no answer, and a stream breaks off.
How
    The formatter gets a parser that leaves such a call out, with a warning in the log, as the
    server does after a ValueError from mlx-lm 0.31.3 on. Missing ``arguments`` become ``{}``.
Upstream
    Not fixed in mlx-lm 0.32.2. Releases without ``ToolCallFormatter`` (up to 0.31.1) are not
    repaired: their handler parses in a function of its own.
Retire when
    ``ToolCallFormatter`` answers whatever its parser does.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

from ....core.patch import Patch, Target, around

logger = logging.getLogger("mlx_patches")


def give_checked_parser(
    init: Callable[..., None],
    formatter: Any,
    tool_parser: Callable[..., Any],
    *args: Any,
    **kwargs: Any,
) -> None:
    """Make a formatter whose parser never raises, and returns calls that can be sent."""
    init(formatter, checked(tool_parser), *args, **kwargs)


def checked(parse: Callable[..., Any]) -> Callable[..., Any]:
    """A parser that returns a list of calls that can be sent; an empty one if it fails."""

    def parse_or_leave_out(*args: Any, **kwargs: Any) -> list[dict[str, Any]]:
        try:
            parsed = parse(*args, **kwargs)
            return [complete(call) for call in (parsed if isinstance(parsed, list) else [parsed])]
        except Exception as error:
            logger.warning("mlx_patches: a tool call is left out, it cannot be read: %r", error)
            return []

    return parse_or_leave_out


def complete(call: Any) -> dict[str, Any]:
    """A call with arguments that JSON has.

    Raises:
        ValueError: it is no call.
    """
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        raise ValueError("this is no call of a tool")
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
    every_model=True,
    summary="mlx_lm.server: a malformed tool call ends the whole answer",
    targets=(
        Target(
            "mlx-lm",
            "mlx_lm.server",
            "ToolCallFormatter.__init__",
            around(give_checked_parser),
            fingerprint_of=("ToolCallFormatter.__call__", "ToolCallFormatter._format"),
        ),
    ),
)
