"""The tools of a request to mlx-vlm's server, and the parser of their calls."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import Any


def find_parser(request: Any, processor: Any) -> Any:
    """The parser of the calls in the answer to a request; None if it has no tools or no parser."""
    if processor is None or not getattr(request, "tools", None):
        return None
    package = "mlx_vlm.tools" if find_spec("mlx_vlm.tools") else "mlx_vlm.tool_parsers"
    module: Any = importlib.import_module(package)
    name = getattr(request, "tool_parser", None)
    name = name or module._infer_tool_parser_from_processor(processor)
    return module.load_tool_module(name) if name else None
