"""mlx_vlm.server, vllm-mlx, Rapid-MLX: images in a tool's result are lost, texts after it move.

Why: The servers drop the images of a tool's result at most endpoints; the model answers without
    them. A message of ``/v1/messages`` may have results and then the user's text: the servers put
    the text first, so that the model answers the result. vllm-mlx, and at
    ``/v1/responses`` Rapid-MLX and mlx_vlm.server below 0.7, show a result that has parts as the
    text of a list.
How: In each body that an endpoint reads, a message is split between its results and its other
    parts, the texts of a result become one, and images that a server would drop are in a message
    of the user behind the results, as Rapid-MLX does at ``/v1/messages``. This depends on one name
    of Starlette.
Upstream: Not fixed in mlx-vlm 0.7.10, vllm-mlx 0.6.0 and Rapid-MLX 0.16.10.
Retire when: The servers keep the order of a message's parts, and read results that have parts.
"""

import sys
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from ....core.verbs import Function, Patch, wrap
from ..._shared.host_bodies import find_host
from ..._shared.request_values import MEDIA, TEXTS

# The kinds of results, and their fields.
_FIELDS = {"tool": "content", "function_call_output": "output", "tool_result": "content"}
# The kinds that a server cannot read in parts, and those whose images it drops.
_JOINED = {
    "vllm_mlx": ("tool", "function_call_output"),
    **dict.fromkeys(("mlx_vlm", "rapid_mlx"), ("function_call_output",)),
}
_BLIND = {**_JOINED, "mlx_vlm": ("tool", "function_call_output"), "vllm_mlx": tuple(_FIELDS)}
# What reads an output in parts, in the server of mlx-vlm 0.7.
_READER = "_response_tool_output_to_text_and_images"


async def read_body(read: Function, request: Any) -> Any:
    """Starlette's ``Request.json``, which reads the body of each request."""
    body, host = await read(request), find_host(request)
    name = "messages" if isinstance(body, dict) and "messages" in body else "input"
    if not (host and isinstance(body, dict) and isinstance(body.get(name), list)):
        return body
    return {**body, name: list(order_items(body[name], host))}


def order_items(items: list[Any], host: str) -> Iterator[Any]:
    """The messages and results, in which no server changes the order or drops a part."""
    media: list[Any] = []
    for item in (one for each in items for one in split_item(each)):
        kind = kind_of(item)
        if media and not kind:
            yield {"role": "user", "content": media}
            media = []
        if kind == "tool_result":
            results = [take_media(one, kind, host) for one in item["content"]]
            item = item | {"content": [result for result, _ in results]}
            media += [part for _, parts in results for part in parts]
        elif kind:
            item, parts = take_media(item, kind, host)
            media += parts
        yield item
    if media:
        yield {"role": "user", "content": media}


def split_item(item: Any) -> list[Any]:
    """The messages that have the parts of one, in their order."""
    parts = item.get("content") if isinstance(item, dict) else None
    runs = [list(run) for _, run in groupby(parts, is_result)] if isinstance(parts, list) else []
    return [item | {"content": run} for run in runs] if len(runs) > 1 else [item]


def is_result(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "tool_result"


def kind_of(item: Any) -> str:
    """The kind of an item's results; empty if it has none."""
    if not isinstance(item, dict):
        return ""
    content = item.get("content")
    if isinstance(content, list) and content and is_result(content[0]):
        return "tool_result"
    kind = "tool" if item.get("role") == "tool" else item.get("type")
    return kind if kind in ("tool", "function_call_output") else ""


def take_media(result: dict[str, Any], kind: str, host: str) -> tuple[dict[str, Any], list[Any]]:
    """A result whose parts the server reads, and the images that it would drop."""
    field = _FIELDS[kind]
    parts = result.get(field)
    reader = hasattr(sys.modules.get("mlx_vlm.server.responses_state"), _READER)
    is_read = reader and (kind, host) == ("function_call_output", "mlx_vlm")
    if is_read or not (isinstance(parts, list) and all(isinstance(one, dict) for one in parts)):
        return result, []
    dropped = MEDIA if is_blind(kind, host) else ()
    media = [one for one in parts if one.get("type") in dropped]
    if not media and kind not in _JOINED.get(host, ()):
        return result, []
    return result | {
        field: join_texts([one for one in parts if one.get("type") not in dropped])
    }, media


def is_blind(kind: str, host: str) -> bool:
    """Whether the server drops the images of a result. One engine of vllm-mlx reads a message's."""
    engine = getattr(sys.modules.get("vllm_mlx.server"), "_engine", None)
    reads = (kind, host, type(engine).__name__) == ("tool", "vllm_mlx", "SimpleEngine")
    return kind in _BLIND.get(host, ()) and not reads


def join_texts(parts: list[dict[str, Any]]) -> Any:
    """The parts as one text, if all of them are texts."""
    found = [one.get("text") for one in parts if one.get("type") in TEXTS]
    texts = [one for one in found if isinstance(one, str)]
    return "\n".join(texts) if len(texts) == len(parts) else parts


PATCH = Patch(
    id="host-tool-results",
    targets=wrap("starlette.requests:Request.json", read_body),
)
