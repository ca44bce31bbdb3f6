"""Admits a request that hits the prefix cache, and evaluates its caches on another thread."""

import asyncio
from collections import deque
from concurrent.futures import Executor, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

from ....probes.kit import NotApplicable, Result, Target, import_module, module_with, mx

TOKENS, SHARED = 500, 400
REQUEST = "one"


def probe(target: Target) -> Result:
    """Red if the generation thread cannot evaluate the caches of a prefix hit."""
    memory = module_with(target)
    with ThreadPoolExecutor(1) as generation:
        if generation.submit(mx.eval, mx.zeros(2) + 1).exception() is None:
            raise NotApplicable("this MLX evaluates arrays on any thread")
        caches = admit(memory, generation)
        if not caches:
            raise NotApplicable("this release does not reuse a shared prefix")
        error = generation.submit(mx.eval, [layer.state for layer in caches]).exception()
    return Result(error is not None, str(error or "the generation thread evaluates a hit's caches"))


def admit(memory: Any, generation: Executor) -> Any:
    engine = import_module("vllm_mlx.engine_core").EngineCore
    kind = import_module("vllm_mlx.scheduler").Scheduler
    scheduler = SimpleNamespace(
        requests={},
        waiting=deque(),
        memory_aware_cache=make_filled(memory),
        block_aware_cache=None,
        prefix_cache=None,
        _ssd_tier=None,
    )
    scheduler.add_request = lambda request: kind.add_request(scheduler, request)
    running = SimpleNamespace(
        scheduler=scheduler,
        config=SimpleNamespace(stream_interval=1),
        _output_collectors={},
        _stream_states={},
        _finished_events={},
        _external_generation_worker=generation,
    )
    asyncio.run(engine.add_request(running, [*range(SHARED), TOKENS], request_id=REQUEST))
    return scheduler.requests[REQUEST].prompt_cache


def make_filled(memory: Any) -> Any:
    from mlx_lm.models.cache import KVCache

    prefixes = memory.MemoryAwarePrefixCache(model=object(), config=memory.MemoryCacheConfig())
    layer = KVCache()
    keys = mx.random.normal((1, 2, TOKENS, 64), key=mx.random.key(0))
    layer.update_and_fetch(keys, keys * 2)
    mx.eval(layer.state)
    prefixes.store(list(range(TOKENS)), [layer])
    return prefixes
