"""DeepSeek V3.2 in mlx-lm crashes in a batch past 2,048 tokens.

Why: From ``index_topk`` tokens on, the indexer selects what a token attends to. Its scores have a
    shape of (rows, length, keys), and a batch's mask one of (rows, 1, length, keys): together they
    become (rows, rows, length, keys), and the layer raises.
How: The indexer gets the mask without its axis of heads.
Upstream: mlx-lm 0.30.6: the scores keep the axis.
Retire when: No supported release is older.
"""

import functools
import inspect
from typing import Any

from ....core.verbs import Function, Patch, define, lm_family


def select_keys(call: Function) -> Function:
    """Factory of the indexer's call: the keys that each token attends to; None for all."""
    # The names of keyword arguments: where the scores keep the axis, the mask has to.
    constants = inspect.unwrap(call).__code__.co_consts
    keeps_axis = any(isinstance(one, tuple) and "keepdims" in one for one in constants)

    @functools.wraps(call)
    def replacement(
        indexer: Any, x: Any, qr: Any, mask: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        own = mask if keeps_axis else without_heads(mask)
        return call(indexer, x, qr, own, *args, **kwargs)

    return replacement


def without_heads(mask: Any) -> Any:
    """A mask (rows, 1, length, keys) as one of (rows, length, keys); any other as it is."""
    return mask[:, 0] if getattr(mask, "ndim", 0) == 4 else mask


PATCH = Patch(
    id="indexer-mask",
    severity="crash",
    targets=define(lm_family("deepseek_v32", "Indexer.__call__"), select_keys),
)
