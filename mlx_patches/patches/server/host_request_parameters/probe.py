"""Reads bodies of chat requests as an endpoint does."""

import asyncio
from typing import Any

from ....probes.kit import Result, Target, module_of, read_body


def probe(target: Target) -> Result:
    """Red if ``max_completion_tokens`` has no effect, or a parameter is accepted and ignored."""
    for package in ("mlx_vlm", "vllm_mlx"):
        limit = read(target, package, max_completion_tokens=5).get("max_tokens")
        if limit != 5:
            return Result(True, f"{package}: max_completion_tokens 5, but max_tokens {limit}")
        kept = read(target, package, n=1, user="me", max_tokens=7, max_completion_tokens=5)
        if kept["max_tokens"] != 7:
            return Result(True, f"{package}: max_tokens 7 became {kept['max_tokens']}")
        try:
            return Result(True, f"{package}: {read(target, package, n=2)} is accepted")
        except ValueError as error:
            detail = str(error)
    return Result(False, detail)


def read(target: Target, package: str, /, **sent: Any) -> Any:
    """The body that the endpoint of a server with this package gets."""
    endpoint = f"{package}.server:create_chat_completion"
    return asyncio.run(read_body(module_of(target).Request, endpoint, sent))
