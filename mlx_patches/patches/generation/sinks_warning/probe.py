"""Makes a batch generator with ``max_kv_size``, and records warnings about it."""

from __future__ import annotations

import importlib
import inspect

from ....core.patch import Target
from ....probes import NotApplicable, Result
from ....probes.batch_invariance import tiny
from ....probes.fixtures import listened

SIZE = 8


def probe(target: Target) -> Result:
    """Red where a batch's window drops the first tokens without a warning."""
    module = importlib.import_module(target.module)
    if "max_kv_size" not in inspect.signature(module.BatchGenerator).parameters:
        raise NotApplicable("the batch generator of this release takes no max_kv_size")
    caches = importlib.import_module("mlx_lm.models.cache")
    if hasattr(caches.BatchRotatingKVCache(SIZE, [0]), "keep"):
        return Result(False, "a batch's window keeps first tokens")
    model = tiny("mlx-lm", "llama").module
    made, heard = listened(lambda: module.BatchGenerator(model, max_kv_size=SIZE))
    close = getattr(made, "close", None)
    if close is not None:
        close()
    if any("max_kv_size" in message for message in heard):
        return Result(False, "the window drops the first tokens, with a warning")
    return Result(True, "the window drops the first tokens, without a warning")
