"""Loads another model for a second request while the first one waits."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from ....core.verbs import Function
from ....probes.kit import NotApplicable, Result, Target, import_module, require_module, require_own


def probe(target: Target) -> Result:
    """Red if the first request's generator has been stopped when it needs it."""
    fastapi = require_module("fastapi")
    require_module("mlx_vlm.server")
    if target.distribution == "mlx-vlm":
        require_own(target)
    with loading() as server:
        answers = asyncio.run(visit(fastapi.FastAPI(), server))
    return Result(answers != ["first", "second"], f"{' and '.join(answers)} answered")


class Generator:
    """The generator of a model that needs no memory."""

    def __init__(self, model_path: str, **options: Any):
        self.name = model_path

    def wait_until_ready(self) -> tuple[Any, ...]:
        config = SimpleNamespace(model_type="llama", text_config=None)
        return SimpleNamespace(config=config), None, config

    def stop_and_join(self) -> None:
        self.name += ", which is unloaded,"


@contextmanager
def loading() -> Iterator[Any]:
    """The module of the release's server that loads models; these need no memory."""
    server: Any = import_module("mlx_vlm.server")
    place: Any = import_module("mlx_vlm.server.app") if hasattr(server, "__path__") else server
    if not hasattr(place, "ResponseGenerator"):
        raise NotApplicable("this release's server has no ResponseGenerator")
    released, place.ResponseGenerator = place.ResponseGenerator, Generator
    try:
        yield place
    finally:
        place.ResponseGenerator = released
        place.unload_model_sync()


async def visit(app: Any, server: Any) -> list[str]:
    """The generators that answer two requests, the second of which comes while the first waits."""
    came = asyncio.Event()

    async def endpoint(model: str) -> str:
        server.get_cached_model(model)
        came.set()
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
