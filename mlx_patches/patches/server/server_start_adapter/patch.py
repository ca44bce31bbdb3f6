"""mlx_lm.server --adapter-path serves the model without the adapter.

Why: The server looks the adapter up by the model's path, but stores it under ``default_model``, the
    name at start-up and of requests without a model.
How: A model that is loaded under that name gets the adapter, unless the request names another one.
Upstream: mlx-lm 0.32.0 looks it up before the name is replaced (mlx-lm 1249).
Retire when: No supported release is older than mlx-lm 0.32.0.
"""

from typing import Any

from ....core.verbs import Patch, argument


def find_adapter(provider: Any, /, model_path: Any, adapter_path: Any) -> Any:
    """The request's adapter; else the command line's, by the model's name in the request."""
    return provider._adapter_map.get(model_path) if adapter_path is None else adapter_path


PATCH = Patch(
    id="server-start-adapter",
    targets=argument("mlx_lm.server:ModelProvider.load", "adapter_path", find_adapter),
)
