"""mlx_vlm.server: a request is answered by the model that a later request loads.

Why: A request gets its model first, and the server's generator only after it has waited for a
    thread. If a request to another model comes in between, that model answers the prompt, or the
    request fails. Below mlx-vlm 0.7.0 requests that are being answered hang.
How: A request to another model waits until those of the loaded model have their answers, and new
    requests wait behind it. Its endpoint ends before it unloads the model, and then begins again:
    only the release knows whether a request needs another model.
Upstream: Not fixed in mlx-vlm 0.7.10.
Retire when: Each request keeps the generator of its model.
"""

import asyncio
import importlib
from contextvars import ContextVar
from typing import Any

from ....core.verbs import Function, Patch, before, wrap
from ..._shared.targets import vlm_server


class Wait(BaseException):
    """Ends an endpoint before it loads its model; no Exception, which endpoints answer."""


class Visit:
    """A request to a server, and whether it has waited."""

    def __init__(self, scope: Any, receive: Function):
        self.request = (scope, receive)
        self.is_next = False


# Of the request that a task or its threads handle.
VISIT: ContextVar[Visit | None] = ContextVar("mlx_patches_visit", default=None)
# The requests that use the loaded text model, and those that wait for their model.
USERS: set[Visit] = set()
WAITING: dict[Visit, asyncio.Event] = {}


async def end_visit(call: Function, app: Any, scope: Any, receive: Any, send: Any) -> None:
    """Starlette's call of an application; the request is over when it returns."""
    if scope["type"] != "http":  # such as the call for the server's lifespan
        await call(app, scope, receive, send)
        return
    visit = Visit(scope, receive)
    VISIT.set(visit)
    try:
        await call(app, scope, receive, send)
    finally:
        leave(visit)


def leave(visit: Visit) -> None:
    """Note that a request uses no model; the last one lets the waiting ones continue."""
    USERS.discard(visit)
    WAITING.pop(visit, None)
    if not USERS:
        for event in WAITING.values():
            event.set()
        WAITING.clear()


async def answer_in_turn(call: Function, **arguments: Any) -> Any:
    """FastAPI's call of an endpoint, which begins again if it had to wait."""
    while True:
        try:
            return await call(**arguments)
        except Wait:
            visit = VISIT.get()
            assert visit
        leave(visit)
        if USERS:
            WAITING[visit] = asyncio.Event()
            await WAITING[visit].wait()
        visit.is_next = True
        requests: Any = importlib.import_module("starlette.requests")
        if await requests.Request(*visit.request).is_disconnected():
            responses: Any = importlib.import_module("starlette.responses")
            return responses.Response(status_code=499)  # the client has left: load nothing


def get_model(load: Function, *args: Any, **kwargs: Any) -> Any:
    """The model of a request, which uses it from now on."""
    visit = VISIT.get()
    if visit is None or kwargs.get("model_kind", "auto") not in ("auto", "text_generation"):
        return load(*args, **kwargs)
    if WAITING and not visit.is_next and visit not in USERS:
        raise Wait
    model = load(*args, **kwargs)
    USERS.add(visit)
    return model


def check_users() -> None:
    """End the endpoint of a request that would unload a model in use."""
    visit = VISIT.get()
    if visit and is_in_use(visit):
        raise Wait


def is_in_use(visit: Visit) -> bool:
    """Whether other requests use the loaded model."""
    return bool(USERS - {visit})


def check_group(cache_group: str) -> None:
    """The same for a group of models; those of other kinds stay with their requests."""
    if cache_group == "text_generation":
        check_users()


PATCH = Patch(
    id="vlm-model-swap",
    targets=(
        *wrap(vlm_server("app", "get_cached_model"), get_model),
        *before(vlm_server("app", "unload_model_sync"), check_users),
        *before("mlx_vlm.server.app:_unload_model_cache_group", check_group),
        *wrap(
            "starlette.middleware.exceptions:ExceptionMiddleware.__call__", end_visit, supports=True
        ),
        *wrap("fastapi.routing:run_endpoint_function", answer_in_turn, supports=True),
    ),
)
