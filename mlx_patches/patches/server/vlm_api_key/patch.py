"""mlx_vlm.server answers requests without its API key.

Why: With ``--api-key`` only the management routes check the key: health, metrics, the prefix cache.
    Anyone who reaches the server can use its models and make it load others.
How: Every route checks the key, from its registration or from the server's start on. Optional:
    requests without the key were answered before.
Upstream: mlx-vlm 0.6.8 (issue 1714).
Retire when: No supported release is older than mlx-vlm 0.6.8.
"""

import importlib
from typing import Any

from ....core.verbs import Patch, before
from ..._shared.targets import LIMIT


def guard_app(app: Any) -> None:
    """Make the routes that are registered from now on check the key."""
    if not has_key_check(app):
        app.router.dependencies.append(make_key_check())


def guard_registered() -> None:
    """Make the routes that were registered before the patch was applied check the key."""
    app = importlib.import_module("mlx_vlm.server.app").app
    if not has_key_check(app):
        fastapi: Any = importlib.import_module("fastapi")
        router = fastapi.APIRouter()
        router.routes[:], app.router.routes[:] = app.router.routes, ()
        app.include_router(router, dependencies=[make_key_check()])


def has_key_check(app: Any) -> bool:
    check = make_key_check().dependency
    return any(one.dependency is check for one in app.router.dependencies)


def make_key_check() -> Any:
    """The release's own check of the key, as a dependency of routes."""
    fastapi: Any = importlib.import_module("fastapi")
    server: Any = importlib.import_module("mlx_vlm.server.app")
    return fastapi.Depends(server._require_management_api_key)


PATCH = Patch(
    id="vlm-api-key",
    **LIMIT,
    targets=(
        # Its help lists the routes that check the key.
        *before("mlx_vlm.server.cli:main", guard_registered),
        *before(
            [f"mlx_vlm.server.{name}:register_routes" for name in ("anthropic", "openai", "audio")],
            guard_app,
            supports=True,
        ),
    ),
)
