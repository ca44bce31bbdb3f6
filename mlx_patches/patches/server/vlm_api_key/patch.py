"""``mlx_vlm.server`` answers requests without its API key.

Why
    With ``--api-key`` only the management routes ask for the key: health, metrics, the prefix
    cache. Whoever reaches the server can use its models, and make it load others.
How
    Every route asks for the key, as it is registered or before the server starts. Optional:
    requests without the key were answered before.
Upstream
    mlx-vlm 0.6.8 (issue 1714).
Retire when
    No supported release is older than mlx-vlm 0.6.8.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from ....core.patch import Patch, Target, around


def registered(register: Callable[..., Any], app: Any, *args: Any, **kwargs: Any) -> Any:
    """Register routes that ask for the key, as do those that are registered later."""
    if not asks(app):
        app.router.dependencies.append(key_check())
    return register(app, *args, **kwargs)


def started(main: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Start the server, whose routes may have been registered before the patch was applied."""
    app = importlib.import_module("mlx_vlm.server.app").app
    if not asks(app):
        fastapi: Any = importlib.import_module("fastapi")
        router = fastapi.APIRouter()
        router.routes[:], app.router.routes[:] = app.router.routes, ()
        app.include_router(router, dependencies=[key_check()])
    return main(*args, **kwargs)


def asks(app: Any) -> bool:
    """Whether the routes of an app are registered with the check of the key."""
    check = key_check().dependency
    return any(one.dependency is check for one in app.router.dependencies)


def key_check() -> Any:
    """The release's own check of the key, as a dependency of routes."""
    fastapi: Any = importlib.import_module("fastapi")
    server: Any = importlib.import_module("mlx_vlm.server.app")
    return fastapi.Depends(server._require_management_api_key)


PATCH = Patch(
    id="vlm-api-key",
    severity="security",
    summary="mlx_vlm.server answers requests without its API key",
    targets=(
        # Its help says which routes ask for the key.
        Target("mlx-vlm", "mlx_vlm.server.cli", "main", around(started)),
        *(
            Target(
                "mlx-vlm",
                f"mlx_vlm.server.{module}",
                "register_routes",
                around(registered),
                supports=True,
            )
            for module in ("anthropic", "openai", "audio")
        ),
    ),
    optional=True,
    security=True,
    profiles=("security",),
)
