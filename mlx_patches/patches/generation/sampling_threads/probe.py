"""Calls a compiled function of ``sample_utils`` in a new thread, eight times after a seed."""

import inspect
from types import FunctionType
from typing import Any

from ....lab.threads import in_a_thread
from ....probes.kit import NotApplicable, Result, Target, mx, require

_TOKENS, _CALLS = 64, 8
_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "apply_top_k": (8,),
    "apply_min_p": (0.1,),
    "apply_top_p": (0.9,),
    "typical_p": (0.9,),
    "apply_xtc": (0.5, 0.01, []),
    "categorical_sampling": (1.0,),
}
_DRAW = ("apply_xtc", "categorical_sampling")


def probe(target: Target) -> Result:
    """Red if all draws are the same, or the importing thread's random state is written."""
    function = require(target)
    if type(inspect.unwrap(function)) is FunctionType:  # a compiled one has this ``__class__`` too
        return Result(False, "it is not compiled")
    state = mx.random.state
    if in_a_thread(lambda: mx.random.state is state):
        raise NotApplicable("in this MLX a compiled function reads the calling thread's state")
    before = state[0]

    def draw() -> list[Any]:
        mx.random.seed(1)
        logits = mx.log(mx.softmax(mx.arange(_TOKENS) / 16))[None]
        arguments = _ARGUMENTS[target.name.removeprefix("_")]
        return [function(logits, *arguments).tolist() for _ in range(_CALLS)]

    drawn = in_a_thread(draw)
    if isinstance(drawn, Exception):
        return Result(True, f"a call in a thread raises {type(drawn).__name__}: {drawn}")
    if target.name in _DRAW and all(one == drawn[0] for one in drawn):
        return Result(True, f"{_CALLS} calls in a thread draw the same")
    if state[0] is not before:
        return Result(True, "a call in a thread writes another thread's random state")
    return Result(False, "a thread reads and writes its own random state")
