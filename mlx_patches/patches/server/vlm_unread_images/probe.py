"""Sends a server an image that is none."""

import asyncio
from types import SimpleNamespace
from typing import Any

from ....probes.kit import Result, Target, class_of, require_module, require_own
from ....probes.vlm_server import make_preparing_server
from ..._shared.refusals import client_error

IMAGE = "data:image/png;base64,bm9uZQ=="


def probe(target: Target) -> Result:
    """Red if the error is no client's error, or if it has the image's data."""
    if target.distribution == "fastapi":
        return probe_endpoint(target)
    require_own(target)
    tokenizer = SimpleNamespace(pad_token=".", chat_template=None, image_processor=None)
    server = make_preparing_server(class_of(target), tokenizer)
    try:
        server._cpu_preprocess("a prompt", [IMAGE])
    except Exception as error:
        status: Any = getattr(error, "status_code", 500)
        return Result(status != 400 or IMAGE in str(error), f"status {status}: {error}"[:160])
    return Result(True, "the image was read")


def probe_endpoint(target: Target) -> Result:
    """Red if an endpoint's error with status 500 hides the client's."""
    fastapi, routing = require_module("fastapi"), require_module(target.module)

    async def endpoint() -> None:
        try:
            raise client_error("no image")
        except Exception as error:
            raise fastapi.HTTPException(status_code=500) from error

    called = SimpleNamespace(call=endpoint)
    run = routing.run_endpoint_function
    try:
        asyncio.run(run(dependant=called, values={}, is_coroutine=True))
    except fastapi.HTTPException as error:
        return Result(error.status_code != 400, f"status {error.status_code}")
    return Result(True, "no error")
