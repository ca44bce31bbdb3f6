"""mlx_lm.server ignores --prompt-cache-bytes: memory grows with the prompts it caches.

Why: ``run`` limits the number of prompts in the cache, but not its bytes. The byte limit is applied
    only when a request joins a batch: a finished request's caches stay whole until the next
    request, and never shrink for a model that serves one request at a time. The memory of ten long
    prompts is unbounded: users reported 17 to 243 GB in a day.
How: The server's prompt cache gets the limit, and applies it whenever a prompt is inserted.
Upstream: mlx-lm 1118, 1267, 1390, 1392, 1409; not fixed in mlx-lm 0.32.2.
Retire when: ``run`` gives the cache its limit.
"""

from typing import Any

from ....core.verbs import Patch, before


def limit_bytes(model_provider: Any, prompt_cache: Any) -> None:
    """Lower a prompt cache's byte limit to that of the command line."""
    most = getattr(getattr(model_provider, "cli_args", None), "prompt_cache_bytes", None)
    own = getattr(prompt_cache, "max_bytes", None)
    if most is not None and own is not None:
        prompt_cache.max_bytes = min(own, most)


PATCH = Patch(
    id="server-cache-bytes",
    severity="memory",
    targets=before(
        "mlx_lm.server:ResponseGenerator.__init__",
        limit_bytes,
        fingerprint_of=("ResponseGenerator.__init__", "run"),
    ),
)
