"""``--prompt-cache-bytes`` of ``mlx_lm.server`` does not limit its prompt cache.

Why
    ``run`` makes the prompt cache with a number of prompts alone. The bytes are asked for only
    when a request joins a batch: what a request leaves behind is kept whole until the next one,
    and a model that is served one request at a time is never limited. Ten long prompts take as
    much as they take: 17 to 243 GB in a day.
How
    The server's cache gets the limit, and keeps to it whenever a prompt is put in.
Upstream
    mlx-lm 1118, 1267, 1390, 1392, 1409; not fixed in mlx-lm 0.32.2.
Retire when
    ``run`` gives the cache its limit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...core.patch import Patch, Target, around


def begin_limited(
    begin: Callable[..., None],
    server: Any,
    model_provider: Any,
    prompt_cache: Any,
    *args: Any,
    **kwargs: Any,
) -> None:
    """A server's own constructor, for a prompt cache that has the limit of its command line."""
    limit_bytes(prompt_cache, model_provider)
    begin(server, model_provider, prompt_cache, *args, **kwargs)


def limit_bytes(prompt_cache: Any, model_provider: Any) -> None:
    """Give a prompt cache the limit that the command line names, where its own is larger."""
    most = getattr(getattr(model_provider, "cli_args", None), "prompt_cache_bytes", None)
    own = getattr(prompt_cache, "max_bytes", None)
    if most is not None and own is not None:
        prompt_cache.max_bytes = min(own, most)


PATCH = Patch(
    id="server-cache-bytes",
    summary="--prompt-cache-bytes does not limit what mlx_lm.server keeps of earlier prompts",
    targets=(
        Target(
            "mlx-lm",
            "mlx_lm.server",
            "ResponseGenerator.__init__",
            around(begin_limited),
            body=("ResponseGenerator.__init__", "run"),
        ),
    ),
    probe="mlx_patches.probes.server_cache_bytes:probe",
    module=__name__,
)
