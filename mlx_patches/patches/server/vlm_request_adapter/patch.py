"""mlx_vlm.server: a request without an adapter is answered with that of another request.

Why: A request that names no adapter gets the adapter of the loaded model, which the last request
    that named one has loaded. Up to mlx-vlm 0.6, the prefix cache on disk is the same with any
    adapter (``APC_DISK_PATH``).
How: It gets the adapter with which the server was started, or none. The cache on disk is named by
    the adapter too.
Upstream: Not fixed in mlx-vlm 0.7.10.
Retire when: A request without ``adapter_path`` gets the server's own adapter.
"""

from contextvars import ContextVar
from typing import Any

from ....core.verbs import Patch, argument
from ..._shared.callers import is_vlm_starting
from ..._shared.targets import vlm_server

# The adapters with which the server was started, by model.
STARTED: dict[str, str | None] = {}
# The model that is being loaded, and its adapter.
LOADING: ContextVar[tuple[str, str | None]] = ContextVar("mlx_patches_loading", default=("", None))


def choose_adapter(model_path: str, adapter_path: Any) -> str | None:
    """A request's adapter or None; the server's in place of the mark for the loaded one."""
    adapter: str | None = adapter_path if isinstance(adapter_path, str) else None
    if adapter_path is not None and adapter is None:
        adapter = STARTED.get(model_path)
    elif is_vlm_starting():
        STARTED[model_path] = adapter
    LOADING.set((model_path, adapter))
    return adapter


def name_adapter(model_namespace: Any) -> Any:
    """The name of a cache on disk, with the adapter if it is only the model's."""
    model, adapter = LOADING.get()
    return f"{model}@{adapter}" if adapter and model_namespace == model else model_namespace


PATCH = Patch(
    id="vlm-request-adapter",
    targets=(
        *argument(vlm_server("app", "get_cached_model"), "adapter_path", choose_adapter),
        *argument("mlx_vlm.apc:from_env", "model_namespace", name_adapter, supports=True),
    ),
)
