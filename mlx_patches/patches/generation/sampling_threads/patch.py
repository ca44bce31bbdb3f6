"""MLX 0.31.2 and 0.32.0: sampling in a server's thread repeats the same token forever.

Why: MLX 0.31.2 and 0.32.0 keep a random state for each thread, but the functions of
    ``sample_utils`` are compiled with the state of the thread that imports them. In any other
    thread a draw never advances: a server returns one answer for every request at any temperature,
    and ignores ``seed``. Functions that draw nothing still read and write that foreign state, which
    may raise "There is no Stream(cpu, 0) in current thread".
How: Each thread compiles the release's function once, with the thread's own random state. The
    importing thread keeps the function that the release compiled.
Upstream: From MLX 0.32.1 on, a compiled function reads the state of the calling thread (mlx #4234).
    mlx-lm 0.32.0 and mlx-vlm 0.7.0 require a later MLX. Reported as mlx-lm #1245, mlx-lm #1439,
    mlx-lm #1620 and mlx-lm #1675.
Retire when: No supported release accepts MLX 0.32.0.
"""

import functools
import gc
import inspect
import threading
from types import FunctionType
from typing import Any

from ....core.verbs import Function, Patch, define


class Compiled(threading.local):
    """A function compiled by MLX, recompiled for each thread that calls it.

    A compiled function has no attribute for its state or for the function that it was made from;
    both are found through the garbage collector.
    """

    def __init__(self, compiled: Function):
        import mlx.core as mx

        held = gc.get_referents(inspect.unwrap(compiled))
        functions = [one for one in held if type(one) is FunctionType]
        state = mx.random.state
        self.call = compiled
        if functions and not any(one is state for one in held):
            self.call = mx.compile(functions[0], inputs=state, outputs=state)


def compile_per_thread(compiled: Function) -> Function:
    """A function that runs a compiled one with the random state of the calling thread."""
    own = Compiled(compiled)

    @functools.wraps(compiled)
    def call(*args: Any, **kwargs: Any) -> Any:
        return own.call(*args, **kwargs)

    return call


_EVERYWHERE = ("apply_top_k", "apply_min_p", "apply_top_p", "apply_xtc", "categorical_sampling")
_NAMES = {
    "mlx_lm": _EVERYWHERE,
    "mlx_vlm": (*_EVERYWHERE, "_apply_top_k", "_apply_min_p", "_typical_p"),
}

PATCH = Patch(
    id="sampling-threads",
    mlx=("0.31.2", "0.32.0"),
    targets=define(
        [f"{package}.sample_utils:{name}" for package in _NAMES for name in _NAMES[package]],
        compile_per_thread,
    ),
)
