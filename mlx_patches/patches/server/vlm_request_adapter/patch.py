"""mlx_vlm.server: a request without an adapter is answered with that of another request.

Why: A request that names no adapter gets the adapter of the loaded model, which the last request
    that named one has loaded.
How: It gets the adapter with which the server was started, or none.
Upstream: Not fixed in mlx-vlm 0.7.10.
Retire when: A request without ``adapter_path`` gets the server's own adapter.
"""

from typing import Any

from ....core.verbs import Patch, argument
from ..._shared.callers import is_vlm_starting
from ..._shared.targets import vlm_server

# The adapters with which the server was started, by model.
STARTED: dict[str, str | None] = {}


def choose_adapter(model_path: str, adapter_path: Any) -> str | None:
    """A request's adapter or None; the server's in place of the mark for the loaded one."""
    if adapter_path is not None and not isinstance(adapter_path, str):
        return STARTED.get(model_path)
    if is_vlm_starting():
        STARTED[model_path] = adapter_path
    return adapter_path


PATCH = Patch(
    id="vlm-request-adapter",
    targets=argument(vlm_server("app", "get_cached_model"), "adapter_path", choose_adapter),
)
