"""Requests a chat answer that ends at its limit from the server's own endpoint."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any
from unittest import mock

from ....probes.kit import NotApplicable, Result, Target, import_module, module_of
from ....probes.vlm_server import make_silent_generator


def probe(target: Target) -> Result:
    """Red if an answer that was cut off reports ``stop``."""
    server = module_of(target)
    for name in ("ChatChoice", "ResponseGenerator"):
        if getattr(getattr(server, name, None), "__module__", "") != target.module:
            raise NotApplicable(f"this release does not define {name} there")
    (answer,) = request_answers(["one ", "two"], {})
    reason = answer.choices[0].finish_reason
    return Result(reason != "length", f"an answer at its limit reports {reason!r}")


def request_answers(texts: Iterable[str], *sent: Mapping[str, Any]) -> list[Any]:
    """The endpoint's answers, of these texts up to a limit, to requests with these fields."""
    server: Any = import_module("mlx_vlm.server")
    messages = [{"role": "user", "content": "hi"}]
    stands = {
        "get_cached_model": lambda *args: (None, None, None),
        "apply_chat_template": lambda *args, **options: "hi",
        "_infer_tool_parser_from_processor": lambda processor: None,
        "response_generator": make_silent_generator(texts),
    }

    async def request_one(**fields: Any) -> Any:
        request = server.ChatRequest.model_validate({"model": "m", "messages": messages, **fields})
        return await server.chat_completions_endpoint(request, None)

    async def request_all() -> list[Any]:
        return await asyncio.gather(*(request_one(**fields) for fields in sent))

    with mock.patch.dict(vars(server), stands):
        return asyncio.run(request_all())
