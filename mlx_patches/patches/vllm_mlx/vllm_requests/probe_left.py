"""Cancels a request of vllm-mlx's simple engine while its thread samples."""

import asyncio
import contextlib
import time
from types import SimpleNamespace
from typing import Any

from ....probes.kit import Result, Target, import_module, mx, require_own
from ....probes.vllm_engine import open_simple_engine

_LENGTH = 500


def probe(target: Target) -> Result:
    """Red if the call samples up to its limit."""
    require_own(target)
    leave = cancel_completion if target.name.endswith("_impl") else cancel
    with open_simple_engine() as engine:
        count = asyncio.run(leave(engine))
    return Result(count >= _LENGTH, f"{count} of {_LENGTH} tokens of a request that was cancelled")


async def cancel(engine: Any) -> int:
    """The number of tokens of a request that is cancelled after the first."""
    models: Any = import_module("vllm_mlx.models.llm")
    model = models.MLXLanguageModel.__new__(models.MLXLanguageModel)
    loop, begun = asyncio.get_running_loop(), asyncio.Event()
    count = 0

    def generate() -> None:
        nonlocal count
        sampler = model._create_sampler(0.0, 1.0)
        for _ in range(_LENGTH):
            sampler(mx.zeros((1, 8)))
            count += 1
            loop.call_soon_threadsafe(begun.set)
            time.sleep(0.001)

    request = asyncio.ensure_future(engine._run_blocking_serialized(generate))
    await begun.wait()
    request.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await request
    return count


async def cancel_completion(engine: Any) -> int:
    """The number of tokens of a completion that is cancelled after the first."""
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()
    count = 0

    def generate(**sent: Any) -> Any:
        nonlocal count
        for count in range(1, _LENGTH + 1):
            loop.call_soon_threadsafe(begun.set)
            yield SimpleNamespace(text="a", finished=count == _LENGTH, prompt_tokens=1)

    engine._loaded, engine._model = True, SimpleNamespace(stream_generate=generate)
    request = asyncio.ensure_future(engine.generate("a", _LENGTH))
    await begun.wait()
    request.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await request
    return count
