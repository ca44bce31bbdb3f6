"""Hangs up while the server's generator answers a request that is not streamed."""

import asyncio
from typing import Any

from ....probes.kit import (
    NotApplicable,
    Result,
    Target,
    import_module,
    read_body,
    require_module,
    require_own,
)
from ....probes.vlm_server import running

_LENGTH = 2000


def probe(target: Target) -> Result:
    """Red if the answer goes on to its limit."""
    requests, server = require_module("starlette.requests"), require_module("mlx_vlm.server")
    if target.distribution == "mlx-vlm":
        require_own(target)
    if not hasattr(getattr(server, "ResponseGenerator", None), "_cancel"):
        raise NotApplicable("this release's server cannot cancel a request")
    with running() as generator:
        count = asyncio.run(hang_up(requests.Request, generator))
    detail = f"{count} of {_LENGTH} tokens after the client hung up"
    return Result(count >= _LENGTH, detail)


async def hang_up(kind: Any, generator: Any, **sent: Any) -> int:
    """The number of tokens of an answer whose client hangs up after the first."""
    server: Any = import_module("mlx_vlm.server")
    first = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def receive() -> dict[str, Any]:
        await first.wait()
        return {"type": "http.disconnect"}

    def collect() -> int:
        args = server.GenerationArguments(max_tokens=_LENGTH, temperature=0.0)
        _, tokens = generator.generate([3, 7], args=args)
        count = 0
        for _ in tokens:
            count += 1
            loop.call_soon_threadsafe(first.set)
        return count

    await read_body(kind, "mlx_vlm.server.openai", sent, receive)
    return await asyncio.to_thread(collect)
