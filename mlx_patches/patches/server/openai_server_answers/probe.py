"""Batches a request with a stop string in mlx-openai-server's handler."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

from ....probes.kit import Result, Target, import_module
from ....probes.stop_text import PIECES, STOP, check_stop


def probe(target: Target) -> Result:
    """Red if the answer goes on after the stop string, or lacks text before it."""
    kind = import_module("app.handler.mlx_lm").MLXLMHandler
    handler = kind.__new__(kind)
    tokenizer = SimpleNamespace(eos_token_ids={0}, encode=lambda text, **_: [9])
    handler.model = SimpleNamespace(
        tokenizer=tokenizer,
        build_sampler=lambda params: None,
        build_logits_processors=lambda params: [],
    )
    closed: list[int] = []
    scheduler = SimpleNamespace(submit_stream=lambda **sent: make_chunks(closed))
    params = {"stop": [STOP], "max_tokens": 9}
    context = SimpleNamespace(
        model_params=params, cache_key=[1], batched_segments=None, batched_segment_types=None
    )

    async def collect() -> list[str]:
        return [one.text async for one in handler._submit_batched_stream(scheduler, context)]

    return check_stop(asyncio.run(collect()), closed)


async def make_chunks(closed: list[int]) -> AsyncIterator[Any]:
    """The chunks of an answer; records if they are closed before its end."""
    kind = import_module("app.core.batch_scheduler").BatchChunk
    try:
        for number, text in enumerate(PIECES):
            yield kind(text, number, "length" if number == len(PIECES) - 1 else None)
    except GeneratorExit:
        closed.append(1)
        raise
