"""Asks vllm-mlx, with its paged cache, for prompts that share blocks, and compares with none."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from typing import Any

from ..core.patch import Target
from . import NotApplicable, Result
from .vllm_scheduler import Server, family, llama, sliding_llama

BLOCK = 16
PREFIX = [1 + (7 * i) % 90 for i in range(3 * BLOCK)]
# Then: nothing but whole blocks, blocks after another beginning, the first blocks, the first.
PROMPTS = (
    [*PREFIX, 91],
    [*PREFIX, 92, 93],
    PREFIX,
    [*PREFIX[BLOCK:], 91],
    PREFIX[: 2 * BLOCK + 1],
    [*PREFIX[:BLOCK], 94, 95],
)


def probe(target: Target) -> Result:
    """Red where a block comes back as something else than what was computed for the prompt."""
    lost = "; ".join(_lost_shapes())
    if lost:
        return Result(True, lost)
    for name, model in _models():
        paged, plain = paged_server(model), Server(model, enable_prefix_cache=False)
        if not serves(plain):
            continue
        turn = [*PROMPTS[0], *plain.answer(PROMPTS[0]), 94, 95]
        for index, prompt in enumerate((*PROMPTS, turn)):
            answer, alone = paged.answer(prompt), plain.answer(prompt)
            if answer != alone:
                return Result(True, f"{name}, request {index}: {answer}, without {alone}")
    return Result(False, "every answer is the one without a prefix cache")


def serves(plain: Server) -> bool:
    """Whether the host can serve a model at all: 0.2.6 cannot make recurrent batch caches."""
    try:
        return plain.answer(PROMPTS[0]) is not None
    except TypeError:
        return False


def paged_server(model: Any) -> Server:
    """The release's scheduler with its paged cache."""
    return Server(
        model,
        use_paged_cache=True,
        use_memory_aware_cache=False,
        paged_cache_block_size=BLOCK,
    )


def _models() -> Iterator[tuple[str, Any]]:
    yield "llama", llama()
    yield "sliding llama", sliding_llama()
    for name in ("mamba", "jamba"):
        yield name, family(name)


def _lost_shapes() -> Iterator[str]:
    """Layers of three and of four axes in one cache: what is not given back as it was stored."""
    import mlx.core as mx

    shapes = ((1, 2, len(PREFIX), 4), (2, len(PREFIX), 4))
    layers = [mx.arange(mx.prod(mx.array(shape)).item()).reshape(shape) for shape in shapes]
    cache = prefix_cache()
    restored = given_back(cache, [(keys, keys + 1) for keys in layers])
    for keys, layer in zip(layers, restored or [None] * len(layers), strict=True):
        got = getattr(layer, "keys", None)
        wanted = keys[..., : 2 * BLOCK, :]
        if got is None or got.shape != wanted.shape or not mx.array_equal(got, wanted):
            yield f"keys of the shape {keys.shape} come back as {getattr(got, 'shape', None)}"


def prefix_cache() -> Any:
    """The release's prefix cache in blocks.

    Raises:
        NotApplicable: it has none.
    """
    try:
        pages = importlib.import_module("vllm_mlx.paged_cache").PagedCacheManager
        prefixes = importlib.import_module("vllm_mlx.prefix_cache").BlockAwarePrefixCache
    except ImportError as error:
        raise NotApplicable(f"this release does not import here: {error}") from error
    return prefixes(None, pages(block_size=BLOCK, max_blocks=64))


def given_back(cache: Any, states: Sequence[Any], end: int = 2 * BLOCK + 1) -> Any:
    """What a request for the first ``end`` tokens gets of caches with these states."""
    cache.store_cache("first", list(PREFIX), [{"state": state} for state in states])
    table, _ = cache.fetch_cache("second", PREFIX[:end])
    return cache.reconstruct_cache(table) if table else None
