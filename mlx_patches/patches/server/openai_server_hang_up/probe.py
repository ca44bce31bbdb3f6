"""Cancels a stream of mlx-openai-server's handler whose chunks come fast."""

import asyncio
from collections.abc import AsyncIterator

from ....probes.kit import Result, Target, import_module

_CHUNKS = 50


def probe(target: Target) -> Result:
    """Red if a stream goes on after its request was cancelled."""
    count = asyncio.run(count_chunks())
    return Result(count > 2, f"{count} chunks after the client has hung up")


async def count_chunks() -> int:
    """The number of chunks that a cancelled stream generates."""
    module, sent = import_module("app.core.handler_process"), 0

    async def make() -> AsyncIterator[int]:
        nonlocal sent
        for sent in range(1, _CHUNKS):
            yield sent

    async for _ in module._stream_until_cancelled(make(), lambda: True):
        pass
    return sent
