"""``--prompt-cache-bytes`` of ``mlx_lm.server`` does not limit its prompt cache.

Why
    ``run`` makes the prompt cache with a limit on the number of prompts, but not on bytes. The
    byte limit is applied only when a request joins a batch: a finished request's caches stay whole
    until the next request, and a model that is served one request at a time is never limited. The
    memory of ten long prompts is unbounded: 17 to 243 GB in a day were reported.
How
    The server's prompt cache gets the limit, and applies it whenever a prompt is inserted.
Upstream
    mlx-lm 1118, 1267, 1390, 1392, 1409; not fixed in mlx-lm 0.32.2.
Retire when
    ``run`` gives the cache its limit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....core.patch import Patch, Target, around


def begin_limited(
    begin: Callable[..., None],
    server: Any,
    model_provider: Any,
    prompt_cache: Any,
    *args: Any,
    **kwargs: Any,
) -> None:
    """Construct a server whose prompt cache has the byte limit of the command line."""
    limit_bytes(prompt_cache, model_provider)
    begin(server, model_provider, prompt_cache, *args, **kwargs)


def limit_bytes(prompt_cache: Any, model_provider: Any) -> None:
    """Lower a prompt cache's byte limit to that of the command line."""
    most = getattr(getattr(model_provider, "cli_args", None), "prompt_cache_bytes", None)
    own = getattr(prompt_cache, "max_bytes", None)
    if most is not None and own is not None:
        prompt_cache.max_bytes = min(own, most)


PATCH = Patch(
    id="server-cache-bytes",
    severity="memory",
    every_model=True,
    summary="mlx_lm.server ignores --prompt-cache-bytes: memory grows with the prompts it caches",
    targets=(
        Target(
            "mlx-lm",
            "mlx_lm.server",
            "ResponseGenerator.__init__",
            around(begin_limited),
            fingerprint_of=("ResponseGenerator.__init__", "run"),
        ),
    ),
)
