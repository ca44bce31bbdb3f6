"""Loads another model for a second request while the first one waits."""

import asyncio
from typing import Any

from ....core.verbs import Function
from ....probes.kit import Result, Target, require_module, require_own
from ....probes.vlm_server import loading


def probe(target: Target) -> Result:
    """Red if the first request's generator has been stopped when it needs it."""
    fastapi = require_module("fastapi")
    require_module("mlx_vlm.server")
    if target.distribution == "mlx-vlm":
        require_own(target)
    with loading() as server:
        answers = asyncio.run(visit(fastapi.FastAPI(), server))
    return Result(answers != ["first", "second"], f"{' and '.join(answers)} answered")


async def visit(app: Any, server: Any) -> list[str]:
    """The generators that answer two requests, the second of which comes while the first waits."""
    came = asyncio.Event()

    async def endpoint(model: str) -> str:
        try:
            server.get_cached_model(model)
        finally:
            came.set()  # also if another patch refuses the model
        await asyncio.sleep(0.1 if model == "first" else 0)
        return str(server.response_generator.name)

    app.add_api_route("/{model}", endpoint)
    one = asyncio.create_task(get(app, "/first"))
    await came.wait()
    return list(await asyncio.gather(one, get(app, "/second")))


async def get(app: Any, path: str, receive: Function | None = None) -> str:
    """The body that an application sends to a request; by default its client stays."""
    body = b""

    async def stay() -> None:
        await asyncio.Event().wait()

    async def send(message: dict[str, Any]) -> None:
        nonlocal body
        body += message.get("body", b"")

    scope = {"type": "http", "method": "GET", "path": path, "headers": [], "query_string": b""}
    await app(scope, receive or stay, send)
    return body.decode().strip('"')
