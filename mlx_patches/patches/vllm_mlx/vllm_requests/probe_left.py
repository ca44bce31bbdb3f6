"""Cancels a request of vllm-mlx's simple engine while its thread samples."""

import asyncio
import contextlib
import time
from types import SimpleNamespace
from typing import Any

from ....probes.kit import NotApplicable, Result, Target, import_module, mx, require_own
from ....probes.vllm_engine import open_simple_engine
from ....probes.vllm_media import MESSAGES

_LENGTH = 500


def probe(target: Target) -> Result:
    """Red if the call samples up to its limit."""
    require_own(target)
    with open_simple_engine() as engine:
        if target.name.endswith(("_serialized", "_sampler")):
            count = asyncio.run(cancel(engine))
        else:
            count = asyncio.run(cancel_stream(engine, target.name.endswith("_chat")))
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


async def cancel_stream(engine: Any, is_chat: bool) -> int:
    """The number of tokens of a completion, or an image model's chat, cancelled after the first."""
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()
    count = 0

    def generate(**sent: Any) -> Any:
        nonlocal count
        for count in range(1, _LENGTH + 1):
            loop.call_soon_threadsafe(begun.set)
            reason = "length" if count == _LENGTH else None
            yield SimpleNamespace(
                text="a", finished=bool(reason), finish_reason=reason, prompt_tokens=1
            )

    engine._loaded, engine._is_mllm = True, is_chat
    engine._model = SimpleNamespace(stream_generate=generate, stream_chat=generate)
    answer = engine.chat(MESSAGES, _LENGTH) if is_chat else engine.generate("a", _LENGTH)
    request = asyncio.ensure_future(answer)
    first = asyncio.ensure_future(begun.wait())
    await asyncio.wait({request, first}, return_when=asyncio.FIRST_COMPLETED)
    first.cancel()
    if not count:  # the release has another way to answer
        raise NotApplicable(f"the answer is not streamed by the model: {request.exception()}")
    request.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await request
    return count
