"""Makes a batch generator with ``max_kv_size``, and records warnings about it."""

import itertools

from ....probes.kit import (
    Result,
    Target,
    import_module,
    module_of,
    record_messages,
    require_parameter,
    tiny,
)

# A new size each time: the patch warns once per size.
SIZES = itertools.count(8)


def probe(target: Target) -> Result:
    """Red if a batch's window drops the first tokens without a warning."""
    module = module_of(target)
    require_parameter(module.BatchGenerator, "max_kv_size")
    caches = import_module("mlx_lm.models.cache")
    size = next(SIZES)
    if hasattr(caches.BatchRotatingKVCache(size, [0]), "keep"):
        return Result(False, "a batch's window keeps first tokens")
    model = tiny("mlx-lm", "llama").module
    made, messages = record_messages(lambda: module.BatchGenerator(model, max_kv_size=size))
    close = getattr(made, "close", None)
    if close is not None:
        close()
    if any("max_kv_size" in message for message in messages):
        return Result(False, "the window drops the first tokens, with a warning")
    return Result(True, "the window drops the first tokens, without a warning")
