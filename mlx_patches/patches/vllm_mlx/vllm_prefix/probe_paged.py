"""Runs prompts that share blocks through vllm-mlx, with its paged cache and without a cache."""

from collections.abc import Iterator, Sequence
from typing import Any

from ....probes.kit import Result, Target, mx, require_module
from ....probes.vllm_scheduler import Server, build_family, build_llama, build_sliding_llama

BLOCK = 16
PREFIX = [1 + (7 * i) % 90 for i in range(3 * BLOCK)]
# After two prompts: whole blocks only, blocks without the first, two blocks, one block.
PROMPTS = (
    [*PREFIX, 91],
    [*PREFIX, 92, 93],
    PREFIX,
    [*PREFIX[BLOCK:], 91],
    PREFIX[: 2 * BLOCK + 1],
    [*PREFIX[:BLOCK], 94, 95],
)


def probe(target: Target) -> Result:
    """Red if the cache returns other keys than it stored, or an answer differs."""
    lost = "; ".join(_find_lost_shapes())
    if lost:
        return Result(True, lost)
    for name, model in _make_models():
        paged, plain = make_paged_server(model), Server(model, enable_prefix_cache=False)
        if not can_serve(plain):
            continue
        turn = [*PROMPTS[0], *plain.answer(PROMPTS[0]), 94, 95]
        for index, prompt in enumerate((*PROMPTS, turn)):
            answer, wanted = paged.answer(prompt), plain.answer(prompt)
            if answer != wanted:
                return Result(True, f"{name}, request {index}: {answer}, without {wanted}")
    return Result(False, "every answer equals the one without a prefix cache")


def can_serve(plain: Server) -> bool:
    """Whether the host can serve the model at all: 0.2.6 cannot make recurrent batch caches."""
    try:
        return plain.answer(PROMPTS[0]) is not None
    except TypeError:
        return False


def make_paged_server(model: Any) -> Server:
    """Start the release's scheduler with its paged cache."""
    return Server(
        model, use_paged_cache=True, use_memory_aware_cache=False, paged_cache_block_size=BLOCK
    )


def _make_models() -> Iterator[tuple[str, Any]]:
    yield "llama", build_llama()
    yield "sliding llama", build_sliding_llama()
    for name in ("mamba", "jamba"):
        yield name, build_family(name)


def _find_lost_shapes() -> Iterator[str]:
    """Store a layer of four axes with one of three; yield each that is not restored equal."""
    shapes = ((1, 2, len(PREFIX), 4), (2, len(PREFIX), 4))
    layers = [mx.arange(mx.prod(mx.array(shape)).item()).reshape(shape) for shape in shapes]
    cache = make_prefix_cache()
    restored = store_and_restore(cache, [(keys, keys + 1) for keys in layers])
    for keys, layer in zip(layers, restored or [None] * len(layers), strict=True):
        got = getattr(layer, "keys", None)
        wanted = keys[..., : 2 * BLOCK, :]
        if got is None or got.shape != wanted.shape or not mx.array_equal(got, wanted):
            yield f"keys of shape {keys.shape} are restored as {getattr(got, 'shape', None)}"


def make_prefix_cache() -> Any:
    """Make the release's block-based prefix cache, if it has one."""
    pages = require_module("vllm_mlx.paged_cache").PagedCacheManager
    prefixes = require_module("vllm_mlx.prefix_cache").BlockAwarePrefixCache
    return prefixes(None, pages(block_size=BLOCK, max_blocks=64))


def store_and_restore(cache: Any, states: Sequence[Any]) -> Any:
    """Store caches with these states; returns the caches of a request for two blocks of them."""
    cache.store_cache("first", list(PREFIX), [{"state": state} for state in states])
    table, _ = cache.fetch_cache("second", PREFIX[: 2 * BLOCK + 1])
    return cache.reconstruct_cache(table) if table else None
