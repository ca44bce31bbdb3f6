"""vllm-mlx's simple engine answers clients that have hung up, and rejects others meanwhile.

Why: Each answer that is not streamed is one call in the engine's thread. If its client hangs up,
    the server cancels the request, but the call generates up to ``max_tokens``, and the engine is
    busy until then. vllm-mlx 0.4.1 generates completions, and chats with ``--mllm``, in the thread
    of the server, which handles nothing else meanwhile.
How: The call ends with its request: its sampler raises an error at the next token. The engine
    itself has such a switch for its streams, from vllm-mlx 0.2.9 on. After each token of a
    completion or chat, the server's other tasks run.
Upstream: Not fixed in vllm-mlx 0.6.0, except for tokens in the server's thread. Answers about
    images are still generated to their end.
Retire when: A cancelled request ends its call.
"""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from contextlib import aclosing
from contextvars import ContextVar
from typing import Any

from ....core.verbs import Function, Patch, refusal, result, wrap
from .outputs import SIMPLE

# Set when the request of the call that a thread runs is cancelled.
LEFT: ContextVar[threading.Event | None] = ContextVar("mlx_patches_left", default=None)


async def run(released: Function, engine: Any, call: Function, *args: Any, **sent: Any) -> Any:
    """Run a call that can be cancelled in the engine's thread."""
    if sent.get("on_cancel"):
        return await released(engine, call, *args, **sent)
    left = threading.Event()

    def run_until_left(*args: Any, **sent: Any) -> Any:
        token = LEFT.set(left)
        try:
            return call(*args, **sent)
        finally:
            LEFT.reset(token)

    task = asyncio.ensure_future(released(engine, run_until_left, *args, **sent))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        left.set()
        with contextlib.suppress(Exception):
            await task
        raise


def end_with_client(sampler: Function) -> Function:
    """A sampler that fails once the request is cancelled."""
    left = LEFT.get()
    if left is None:
        return sampler

    def sample(logprobs: Any) -> Any:
        if left.is_set():
            raise refusal(RuntimeError("the client has hung up"))
        return sampler(logprobs)

    return sample


async def let_others_run(outputs: Any) -> AsyncIterator[Any]:
    """Yield the outputs of an answer, and let the server run after each."""
    async with aclosing(outputs):
        async for output in outputs:
            yield output
            await asyncio.sleep(0)


PATCH = Patch(
    id="vllm-simple-hang-up",
    severity="feature",
    probe=".probe_left:probe",
    targets=(
        *wrap(f"{SIMPLE}._run_blocking_serialized", run),
        *result("vllm_mlx.models.llm:MLXLanguageModel._create_sampler", end_with_client),
        *result((f"{SIMPLE}._stream_generate_impl", f"{SIMPLE}.stream_chat"), let_others_run),
    ),
)
