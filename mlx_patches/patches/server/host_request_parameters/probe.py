"""Reads bodies of chat requests as an endpoint does."""

import asyncio
from types import SimpleNamespace
from typing import Any

from ....probes.kit import Result, Target, import_module, module_of, mx, read_body


def probe(target: Target) -> Result:
    """Red if ``max_completion_tokens`` has no effect, or a parameter is accepted and ignored."""
    if target.distribution == "mlx-vlm":
        return asyncio.run(probe_embeddings(module_of(target)))
    if target.distribution == "vllm-mlx":
        return convert_image(module_of(target))
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


def convert_image(adapter: Any) -> Result:
    """Red if a message loses its image."""
    source = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
    message = adapter.AnthropicMessage(role="user", content=[{"type": "image", "source": source}])
    try:
        found = adapter._convert_message(message)
    except ValueError as error:
        return Result(False, str(error))
    return Result("AAAA" not in str(found), f"an image became {found}")


async def probe_embeddings(module: Any) -> Result:
    """Red if embeddings are numbers although the request names base64."""

    request: Any = import_module("starlette.requests")

    def tokenize(texts: list[str], **options: Any) -> dict[str, Any]:
        return {"input_ids": [[1]], "attention_mask": mx.ones((1, 1), mx.int32)}

    def embed(ids: Any, attention_mask: Any) -> Any:
        return SimpleNamespace(text_embeds=mx.array([[0.5, -2.0]]))

    await read_body(request.Request, "mlx_vlm.server:embeddings", {"encoding_format": "base64"})
    vectors, _ = module._embed_items(embed, tokenize, [("text", "hi")])
    return Result(vectors != ["AAAAPwAAAMA="], f"embeddings in base64: {vectors}")


def read(target: Target, package: str, /, **sent: Any) -> Any:
    """The body that the endpoint of a server with this package gets."""
    endpoint = f"{package}.server:create_chat_completion"
    return asyncio.run(read_body(module_of(target).Request, endpoint, sent))
