"""``mlx_lm.server --adapter-path`` serves the model without its adapter.

Why
    The server looks the adapter up by the model's path, but has stored it under ``default_model``,
    the name that is used at start-up and for requests without a model.
How
    A model that is loaded under that name gets the adapter, unless the request names its own.
Upstream
    mlx-lm 0.32.0 looks it up before the name is replaced (mlx-lm 1249).
Retire when
    No supported release is older than mlx-lm 0.32.0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....core.patch import Patch, Target, around


def loaded(
    load: Callable[..., Any],
    provider: Any,
    model_path: Any,
    adapter_path: Any = None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """The requested model, with the command line's adapter if the request names none."""
    if adapter_path is None:
        adapter_path = adapter_of(provider, model_path)
    return load(provider, model_path, adapter_path, *args, **kwargs)


def adapter_of(provider: Any, model_path: Any) -> Any:
    """The command line's adapter for a model, by the name in the request."""
    return provider._adapter_map.get(model_path)


PATCH = Patch(
    id="server-start-adapter",
    every_model=True,
    summary="mlx_lm.server --adapter-path serves the model without the adapter",
    targets=(Target("mlx-lm", "mlx_lm.server", "ModelProvider.load", around(loaded)),),
)
