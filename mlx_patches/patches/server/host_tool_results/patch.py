"""mlx_vlm.server, vllm-mlx, Rapid-MLX: a model reads a text before a tool's result, not after it.

Why: A message of ``/v1/messages`` may have results of tools and then the user's text. The servers
    put the text before the results, so that the model answers the last result. vllm-mlx, and
    Rapid-MLX at ``/v1/responses``, show a result that has text parts as Python's text of a list.
How: In each body that an endpoint reads, a message is split between its results and its other
    parts, and these results become one text. This depends on one name of Starlette.
Upstream: Not fixed in mlx-vlm 0.7.10, vllm-mlx 0.6.0 and Rapid-MLX 0.16.10.
Retire when: The servers keep the order of a message's parts, and read results that have parts.
"""

from collections.abc import Mapping
from itertools import groupby
from typing import Any

from ....core.verbs import Function, Patch, wrap
from ..._shared.host_bodies import find_host

# The items with a result that a server cannot read in parts, and the field that has it.
_RESULTS = {
    "vllm_mlx": {"tool": "content", "function_call_output": "output"},
    "rapid_mlx": {"function_call_output": "output"},
}
_TEXTS = ("text", "input_text", "output_text")


async def read_body(read: Function, request: Any) -> Any:
    """Starlette's ``Request.json``, which reads the body of each request."""
    body = await read(request)
    host = find_host(request)
    return order_results(body, _RESULTS.get(host, {})) if host and isinstance(body, dict) else body


def order_results(body: dict[str, Any], fields: Mapping[str, str]) -> dict[str, Any]:
    """A body whose results of tools are apart from texts; ``fields``: those with joined parts."""
    name = "messages" if "messages" in body else "input"
    items = body.get(name)
    if not isinstance(items, list):
        return body
    return {**body, name: [one for item in items for one in split_item(item, fields)]}


def split_item(item: Any, fields: Mapping[str, str]) -> list[Any]:
    """The items that have the parts of one, in their order."""
    if not isinstance(item, dict):
        return [item]
    field = fields.get(str(item.get("role") or item.get("type")))
    if field:
        return [item | {field: join_texts(item.get(field))}]
    parts = item.get("content")
    runs = [list(run) for _, run in groupby(parts, is_result)] if isinstance(parts, list) else []
    return [item | {"content": run} for run in runs] if len(runs) > 1 else [item]


def is_result(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "tool_result"


def join_texts(result: Any) -> Any:
    """A result as one text, if all of its parts are texts."""
    if not (isinstance(result, list) and all(isinstance(one, dict) for one in result)):
        return result
    texts = [one.get("text") for one in result if one.get("type") in _TEXTS]
    right = len(texts) == len(result) and all(isinstance(one, str) for one in texts)
    return "\n".join(texts) if right else result


PATCH = Patch(
    id="host-tool-results",
    targets=wrap("starlette.requests:Request.json", read_body),
)
