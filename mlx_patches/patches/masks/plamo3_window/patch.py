"""PLaMo 3 in mlx-lm drops one token that its sliding window still covers: wrong output.

Why: The model's mask shows ``window_size + 1`` tokens, the query's own among them, but its sliding
    caches hold ``window_size``. A prompt that is fed at once attends to the mask's window; in
    chunks, token by token, and in a batch, each position lacks its oldest key.
How: The sliding caches hold as many tokens as the mask shows. The mask's window is the intended
    one: its code adds the one token explicitly, and a prompt that is fed at once always used it.
Upstream: mlx-lm #1234 brought the model; not fixed in 0.32.2.
Retire when: The model makes its caches for the window of its mask.
"""

from typing import Any

from ....core.verbs import Patch, result


def widen_windows(caches: Any, model: Any, /) -> Any:
    """The caches, whose windows hold as many tokens as the mask shows: the query's own as well."""
    for cache in caches:
        if getattr(cache, "max_size", None) == model.config.window_size:
            cache.max_size += 1
    return caches


PATCH = Patch(
    id="plamo3-window",
    targets=result(
        "mlx_lm.models.plamo3:Model.make_cache",
        widen_windows,
        fingerprint_of=("Model.make_cache", "Plamo3Decoder.__call__"),
    ),
)
