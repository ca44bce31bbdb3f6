"""Reads bodies of chat requests as an endpoint does."""

import asyncio
import math
from functools import partial
from types import SimpleNamespace
from typing import Any

from ....probes.kit import Result, Target, module_of, read_body, require_module

_REFUSED: tuple[dict[str, Any], ...] = (
    {"seed": "x"},
    {"top_p": math.nan},
    {"messages": []},
    {"n": 2},
)


def probe(target: Target) -> Result:
    """Red if ``max_completion_tokens`` has no effect, or a parameter is accepted and ignored."""
    if target.distribution == "fastapi":
        return asyncio.run(
            probe_endpoint(require_module(target.module), require_module("starlette.requests"))
        )
    if target.distribution == "vllm-mlx":
        return convert_image(module_of(target))
    for package in ("mlx_vlm", "vllm_mlx"):
        limit = read(target, package, max_completion_tokens=5).get("max_tokens")
        if limit != 5:
            return Result(True, f"{package}: max_completion_tokens 5, but max_tokens {limit}")
        kept = read(target, package, n=1, user="me", max_tokens=7, max_completion_tokens=5)
        if kept["max_tokens"] != 7:
            return Result(True, f"{package}: max_tokens 7 became {kept['max_tokens']}")
        for sent in _REFUSED:
            try:
                return Result(True, f"{package}: {read(target, package, **sent)} is accepted")
            except ValueError as error:
                detail = str(error)
    return Result(False, detail)


def convert_image(adapter: Any) -> Result:
    """Red if a message loses its image."""
    source = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
    message = adapter.AnthropicMessage(role="user", content=[{"type": "image", "source": source}])
    try:
        found = adapter._convert_message(message)
    except ValueError as error:
        return Result(False, str(error))
    return Result("AAAA" not in str(found), f"an image became {found}")


async def probe_endpoint(routing: Any, requests: Any) -> Result:
    """Red if embeddings are numbers although the request names base64, or if it gets status 500."""
    pydantic = require_module("pydantic")

    def embed() -> Any:
        return {"data": [{"embedding": [0.5, -2.0]}]}

    def parse() -> Any:
        return pydantic.create_model("ChatRequest", input=(str, ...))(input=5)

    await read_body(requests.Request, "vllm_mlx.server:embeddings", {"encoding_format": "base64"})
    run = partial(routing.run_endpoint_function, values={}, is_coroutine=False)
    found = await run(dependant=SimpleNamespace(call=embed))
    if "AAAAPwAAAMA=" not in str(getattr(found, "body", found)):
        return Result(True, f"embeddings in base64: {found}")
    try:
        await run(dependant=SimpleNamespace(call=parse))
    except ValueError as error:
        return Result(getattr(error, "status_code", 500) != 400, str(error).replace("\n", " "))
    return Result(True, "no error")


def read(target: Target, package: str, /, **sent: Any) -> Any:
    """The body that the endpoint of a server with this package gets."""
    endpoint = f"{package}.server:create_chat_completion"
    return asyncio.run(read_body(module_of(target).Request, endpoint, sent))
