"""The calls of an engine's methods, and their outputs."""

import inspect
from collections.abc import AsyncIterator, Callable
from typing import Any

BATCHED = "vllm_mlx.engine.batched:BatchedEngine"
SIMPLE = "vllm_mlx.engine.simple:SimpleEngine"


def name_arguments(released: Callable[..., Any], args: Any, sent: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name: another patch's layer passes them by position."""
    names = inspect.unwrap(released).__code__.co_varnames[1:]
    return sent | dict(zip(names, args, strict=False))


async def take_last(outputs: AsyncIterator[Any]) -> Any:
    """The last output, which has the whole text."""
    last = None
    async for output in outputs:
        last = output
    return last
