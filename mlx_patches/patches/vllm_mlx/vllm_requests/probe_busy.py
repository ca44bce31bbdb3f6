"""Sends vllm-mlx's simple engine a request while it serves another, and fails a stream."""

import asyncio
import contextlib
from typing import Any

from ....probes.kit import Result, Target, module_of, own_class_of, require
from ....probes.vllm_engine import make_engine


def probe(target: Target) -> Result:
    """Red if the error of a busy engine has no status 503, or a stream ends without its error."""
    if target.module == "vllm_mlx.server":
        require(target)
        read = read_response if "responses" in target.name else read_stream
        frames = asyncio.run(read(module_of(target)))
        return Result("error" not in "".join(frames[:1]), f"a stream that fails: {frames}")
    engine = make_engine(own_class_of(target))
    engine._generation_lock_admission, engine._generation_waiters = "fail_fast", 0
    engine._generation_busy_rejections = 0
    error = asyncio.run(send_two(engine))
    status = getattr(error, "status_code", 500)
    return Result(status != 503, f"{type(error).__name__} with status {status}")


async def send_two(engine: Any) -> Exception | None:
    """The error of the second request."""
    engine._generation_lock = asyncio.Lock()
    async with engine._acquire_generation_slot("first"):
        try:
            async with engine._acquire_generation_slot("second"):
                return None
        except Exception as error:
            return error


async def read_stream(server: Any) -> list[str]:
    """The frames of a stream that fails."""

    async def fail() -> Any:
        raise RuntimeError("busy")
        yield

    return [frame async for frame in server._ensure_sse_terminal(fail(), "data: [DONE]\n\n")]


async def read_response(server: Any) -> list[str]:
    """The frames of a stream of ``/v1/responses`` that fails."""
    frames = list[str]()
    with contextlib.suppress(AttributeError):
        async for frame in server._stream_responses_request(None):
            frames.append(frame)
    return frames
