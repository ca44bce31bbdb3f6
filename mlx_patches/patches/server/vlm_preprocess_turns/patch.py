"""``mlx_vlm.server`` prepares requests at once, and one of them fails with "Already borrowed".

Why
    Each request's thread tokenizes its own prompt, all with one tokenizer. A fast tokenizer sets
    its padding before it encodes, and raises "Already borrowed" if it is in use meanwhile.
How
    The threads prepare their prompts in turn. Generation is another thread, and goes on.
Upstream
    mlx-vlm 0.6.5 holds a lock around the same work. tokenizers 537 has the cause.
Retire when
    mlx-vlm below 0.6.5 is no longer supported.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from ....core.patch import Patch, Target, around

_turn = threading.Lock()


def prepared(prepare: Callable[..., Any], server: Any, *args: Any, **kwargs: Any) -> Any:
    """The inputs of a request, prepared while no other request's are."""
    with _turn:
        return prepare(server, *args, **kwargs)


PATCH = Patch(
    id="vlm-preprocess-turns",
    severity="crash",
    every_model=True,
    summary='mlx_vlm.server fails one of several simultaneous requests with "Already borrowed"',
    targets=tuple(
        Target(
            "mlx-vlm",
            module,
            "ResponseGenerator._cpu_preprocess",
            around(prepared),
            # Since 0.6.5 the caller holds a lock.
            fingerprint_of=("ResponseGenerator._cpu_preprocess", "ResponseGenerator.generate"),
        )
        for module in ("mlx_vlm.server", "mlx_vlm.server.generation")
    ),
)
