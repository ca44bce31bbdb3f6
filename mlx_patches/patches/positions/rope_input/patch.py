"""mlx-lm, LongRoPE and YaRN models: wrong queries and keys if a model reads them after RoPE.

Why: RoPE scales its input with ``x[..., :dims] = ...``, which also changes the caller's array. A
    layer that uses the array again reads scaled values; after two calls, values scaled twice.
How: RoPE gets a new handle of the same array. Nothing is copied or added to the graph.
Upstream: mlx-lm 0.31.2 (#1003, commit 2146e4ed).
Retire when: No supported release is older than mlx-lm 0.31.2.
"""

from typing import Any

from ....core.verbs import Patch, argument
from ..._shared.handles import make_handle


def protect_input(x: Any) -> Any:
    return make_handle(x)


PATCH = Patch(
    id="rope-input",
    every_model=True,
    changes_solo=True,
    targets=argument(
        [f"mlx_lm.models.rope_utils:{name}.__call__" for name in ("SuScaledRoPE", "YarnRoPE")],
        "x",
        protect_input,
    ),
)
