"""Reads a body of ``/v1/messages`` and one with a tool's result in parts, as endpoints do."""

import asyncio
from typing import Any

from ....probes.kit import Result, Target, module_of, read_body

_RESULT = {"type": "tool_result", "tool_use_id": "1", "content": "7"}
_IMAGE = {"type": "image_url", "image_url": {"url": "a.png"}}
_TEXT = {"type": "text", "text": "Thanks"}


def probe(target: Target) -> Result:
    """Red if a message keeps its text beside the result, or a result its image or parts."""
    for package in ("mlx_vlm", "vllm_mlx", "rapid_mlx"):
        found = read(target, package, messages=[{"role": "user", "content": [_RESULT, _TEXT]}])
        contents = [one["content"] for one in found["messages"]]
        if contents != [[_RESULT], [_TEXT]]:
            return Result(True, f"{package}: a result and a text in {len(contents)} messages")
    sent = {"role": "tool", "content": [_TEXT, _IMAGE]}
    result, *image = read(target, "mlx_vlm", messages=[sent])["messages"]
    if image != [{"role": "user", "content": [_IMAGE]}]:
        return Result(True, f"a result keeps its image: {result['content']}")
    sent = {"role": "tool", "content": [_TEXT]}
    content = read(target, "vllm_mlx", messages=[sent])["messages"][0]["content"]
    return Result(content != "Thanks", f"a result in parts: {content}")


def read(target: Target, package: str, /, **sent: Any) -> Any:
    """The body that an endpoint of a server with this package gets."""
    return asyncio.run(read_body(module_of(target).Request, f"{package}.server:messages", sent))
