"""Registers the routes of a server with an API key, and requests each of them without it."""

import asyncio
import os
import sys
from contextlib import suppress
from types import SimpleNamespace
from typing import Any
from unittest import mock

from ....probes.kit import Result, Target, import_module, make_scope, module_of, require_names

_KEY = "MLX_VLM_SERVER_API_KEY"


def probe(target: Target) -> Result:
    """Red if a route answers without the key."""
    module: Any = module_of(target)
    server: Any = import_module("mlx_vlm.server.app")
    require_names(server, "_require_management_api_key")
    if hasattr(server, "inference_router"):
        return Result(
            not server.inference_router.dependencies, "the router has the check of the key"
        )
    fastapi: Any = import_module("fastapi")
    app = fastapi.FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    # The function sets the module's globals.
    with mock.patch.dict(vars(module)), mock.patch.dict(os.environ, {_KEY: "secret"}):
        if target.name == "main":
            _start_server(module, server, app)
            routes = {("GET", "/models")}
        else:
            module.register_routes(app, Dependencies())
            routes = {(method, route.path) for route in app.routes for method in route.methods}
        open_routes = {path for way, path in routes if asyncio.run(_send(app, way, path)) != 401}
    names = ", ".join(sorted(open_routes)) or "no route"
    return Result(bool(open_routes), f"without the key: {names}"[:300])


def _start_server(module: Any, server: Any, app: Any) -> None:
    """Start a server that serves nothing, whose app has one route."""
    app.get("/models")(list)
    silent = SimpleNamespace(run=lambda *args, **kwargs: None)
    with (
        mock.patch.object(server, "app", app),
        mock.patch.object(sys, "argv", ["mlx_vlm.server"]),
        mock.patch.object(module, "uvicorn", silent),
    ):
        module.main()


class Dependencies(SimpleNamespace):
    """Has every attribute; no route runs far enough to use one."""

    def __getattr__(self, name: str) -> Any:
        return None


async def _send(app: Any, method: str, path: str) -> int:
    statuses: list[int] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    with suppress(Exception):  # of a route without a body
        await app(make_scope(method, path), receive, send)
    return statuses[0] if statuses else 500
