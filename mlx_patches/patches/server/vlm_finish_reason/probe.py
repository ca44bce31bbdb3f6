"""Requests an answer that ends at its limit from the server's own endpoint."""

import asyncio
import json
import types
from collections.abc import Iterable, Mapping
from typing import Any
from unittest import mock

from ....probes.fixtures import require_module
from ....probes.kit import NotApplicable, Result, Target, import_module, module_of
from ....probes.vlm_server import make_silent_generator


def probe(target: Target) -> Result:
    """Red if an answer that was cut off is reported as complete."""
    server, owner = require_module("mlx_vlm.server"), target.name.partition(".")[0]
    own = getattr(getattr(module_of(target), owner, None), "__module__", "") == target.module
    if not (own and hasattr(server, "ResponseGenerator")):
        raise NotApplicable(f"this release's server has no {owner} there")
    if target.module == "mlx_vlm.server" and owner != "OpenAIResponse":
        (answer,) = request_answers(["one ", "two"], {})
        reported = answer.choices[0].finish_reason
    else:
        reported = asyncio.run(request_response()).status
    return Result(
        reported not in ("length", "incomplete"), f"an answer at its limit reports {reported!r}"
    )


def make_stands(texts: Iterable[str]) -> dict[str, Any]:
    """What stands in for a model in an endpoint's module."""
    return {
        "get_cached_model": lambda *args: (None, None, None),
        "apply_chat_template": lambda *args, **options: "hi",
        "_infer_tool_parser_from_processor": lambda processor, **options: None,
        "response_generator": make_silent_generator(texts),
    }


async def request_response(**fields: Any) -> Any:
    """The endpoint's response to a request with these fields; the parts of a streamed one."""
    server: Any = import_module("mlx_vlm.server")
    endpoints = vars(server if hasattr(server, "response_generator") else server.openai)
    body = json.dumps({"model": "m", "input": "hi", **fields}).encode()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    request = require_module("starlette.requests").Request({"type": "http", "headers": []}, receive)
    stands = make_stands(["one ", "two"])
    runtime = endpoints.get("runtime", types.SimpleNamespace(response_generator=None))
    generator = mock.patch.object(runtime, "response_generator", stands["response_generator"])
    with mock.patch.dict(endpoints, stands), generator:
        answer = await server.responses_endpoint(request)
        return [part async for part in answer.body_iterator] if fields.get("stream") else answer


def request_answers(texts: Iterable[str], *sent: Mapping[str, Any]) -> list[Any]:
    """The endpoint's answers, of these texts up to a limit, to requests with these fields."""
    server: Any = import_module("mlx_vlm.server")
    messages = [{"role": "user", "content": "hi"}]

    async def request_one(**fields: Any) -> Any:
        request = server.ChatRequest.model_validate({"model": "m", "messages": messages, **fields})
        return await server.chat_completions_endpoint(request, None)

    async def request_all() -> list[Any]:
        return await asyncio.gather(*(request_one(**fields) for fields in sent))

    with mock.patch.dict(vars(server), make_stands(texts)):
        return asyncio.run(request_all())
