"""mlx_vlm.server fails one of several simultaneous requests with "Already borrowed".

Why: Each request's thread tokenizes its own prompt with the shared tokenizer. A fast tokenizer sets
    its padding before it encodes, and raises "Already borrowed" if another thread is using it.
How: The threads prepare their prompts in turn. Generation runs in another thread and continues.
Upstream: mlx-vlm 0.6.5 holds a lock around the same work. tokenizers 537 explains the cause.
Retire when: mlx-vlm below 0.6.5 is no longer supported.
"""

import threading
from typing import Any

from ....core.verbs import Function, Patch, wrap
from ..._shared.targets import vlm_server

_turn = threading.Lock()


def prepare_in_turn(prepare: Function, server: Any, *args: Any, **kwargs: Any) -> Any:
    with _turn:
        return prepare(server, *args, **kwargs)


PATCH = Patch(
    id="vlm-preprocess-turns",
    severity="crash",
    targets=wrap(
        vlm_server("generation", "ResponseGenerator._cpu_preprocess"),
        prepare_in_turn,
        # Since 0.6.5 the caller holds a lock.
        fingerprint_of=("ResponseGenerator._cpu_preprocess", "ResponseGenerator.generate"),
    ),
)
