import mlx.core as mx
import pytest

from mlx_patches.patches.vllm_mlx.vllm_prefix.paged import INDEX, Index
from mlx_patches.patches.vllm_mlx.vllm_prefix.probe_paged import (
    BLOCK,
    PREFIX,
    make_paged_server,
    make_prefix_cache,
    store_and_restore,
)
from mlx_patches.probes.vllm_scheduler import Server, build_family, build_llama, build_sliding_llama

from ..releases.conftest import is_installed

pytestmark = pytest.mark.skipif(not is_installed("vllm-mlx"), reason="tests of vllm-mlx")

MODELS = {
    "llama": build_llama,
    "sliding": build_sliding_llama,
    "jamba": lambda: build_family("jamba"),
}


@pytest.fixture(autouse=True)
def _applied(ungated):
    ungated("vllm-paged-prefix")


def kv(*shape):
    keys = mx.arange(mx.prod(mx.array(shape)).item()).reshape(shape)
    return keys, -keys


def extract_layer(layer):
    """A layer as the host hands it over."""
    kind = {"class_name": type(layer).__name__, "class_ref": type(layer)}
    return {"state": layer.state, "meta_state": layer.meta_state, **kind}


def test_sequence_axis():
    states = [kv(1, 2, len(PREFIX), 4), kv(2, len(PREFIX), 4), kv(1, 1, len(PREFIX), 8)]
    restored = store_and_restore(make_prefix_cache(), states)
    for (keys, values), layer in zip(states, restored, strict=True):
        assert layer.offset == 2 * BLOCK
        assert mx.array_equal(layer.keys, keys[..., : 2 * BLOCK, :])
        assert mx.array_equal(layer.values, values[..., : 2 * BLOCK, :])


@pytest.mark.parametrize("name", MODELS)
def test_next_turn_is_hit(name):
    model = MODELS[name]()
    paged, plain = make_paged_server(model), Server(model, enable_prefix_cache=False)
    prompt = [*PREFIX, 91]
    turn = [*prompt, *paged.answer(prompt), 94, 95]
    assert paged.answer(turn) == plain.answer(turn)
    if name == "llama":  # whole blocks only; other caches are stored and found whole
        expected = len(PREFIX)
    elif hasattr(paged.scheduler, "_prompt_output_entry_is_useless"):  # vllm-mlx from 0.5.0
        expected = 0  # the host stores only entries that it can cut back
    else:
        expected = len(turn) - 2
    assert paged.request.cached_tokens == expected


@pytest.mark.parametrize("name", ["sliding", "jamba"])
def test_partial_sequence_with_state_is_miss(name):
    paged = make_paged_server(MODELS[name]())
    paged.answer([*PREFIX, 91])
    paged.answer([*PREFIX, 92])
    assert paged.request.cached_tokens == 0


def test_hits_are_whole_blocks():
    paged = make_paged_server(build_llama())
    paged.answer([*PREFIX, 91])
    paged.answer([*PREFIX[BLOCK:], 91])
    assert paged.request.cached_tokens == 0
    paged.answer([*PREFIX, 92])
    assert paged.request.cached_tokens == len(PREFIX)
    paged = make_paged_server(build_llama())
    paged.answer([*PREFIX, 91])
    paged.answer(PREFIX)
    assert paged.request.cached_tokens == len(PREFIX) - BLOCK


def test_quantized_layer_is_all_or_nothing():
    from mlx_lm.models.cache import KVCache, QuantizedKVCache

    plain, quantized = KVCache(), QuantizedKVCache(group_size=32, bits=8)
    keys = mx.random.normal((1, 2, len(PREFIX), 32))
    for layer in (plain, quantized):
        layer.update_and_fetch(keys, keys)
    cache = make_prefix_cache()
    cache.store_cache("first", PREFIX, [extract_layer(plain), extract_layer(quantized)])
    assert cache.fetch_cache("second", PREFIX[: 2 * BLOCK + 1])[0] is None
    table, rest = cache.fetch_cache("third", [*PREFIX, 91])
    assert rest == [91]
    restored = cache.reconstruct_cache(table)[1]
    assert isinstance(restored, QuantizedKVCache)
    assert restored.offset == len(PREFIX)
    for before, after in zip(quantized.keys, restored.keys, strict=True):
        assert mx.array_equal(before[..., : len(PREFIX), :], after[..., : len(PREFIX), :])


def test_returned_caches_are_copies():
    from mlx_lm.models.cache import ArraysCache

    layer = ArraysCache(2)
    layer[0], layer[1] = mx.ones((1, 3, 4)), mx.ones((1, 4, 2))
    cache = make_prefix_cache()
    cache.store_cache("first", PREFIX, [{"state": kv(1, 2, len(PREFIX), 4)}, extract_layer(layer)])
    layer[0][:] = 7
    layer[1] = mx.zeros((1, 4, 2))
    for request in ("second", "third"):
        table, _ = cache.fetch_cache(request, [*PREFIX, 91])
        restored = cache.reconstruct_cache(table)[1]
        assert restored[0].sum().item() == 12
        assert restored[1].sum().item() == 8
        restored[0][:] = 9


def test_blocks_are_kept_like_the_hosts():
    cache = make_prefix_cache()
    cache.store_cache("first", list(PREFIX), ["not a tensor"])
    table, rest = cache.fetch_cache("second", [*PREFIX, 91])
    assert (table.num_tokens, rest) == (len(PREFIX), [91])
    cache = make_prefix_cache()
    table = cache.store_cache("first", list(PREFIX), [{"state": kv(1, 2, len(PREFIX), 4)}])
    data = cache.paged_cache.allocated_blocks[table.block_ids[0]].cache_data
    assert data[0] is not None
    assert [layer is None for layer in data] == [False]

    from mlx_lm.models.cache import KVCache

    layer = {"state": kv(1, 2, len(PREFIX), 4), "class_ref": KVCache, "class_name": "ArraysCache"}
    cache = make_prefix_cache()
    table = cache.store_cache("first", list(PREFIX), [layer])
    assert cache.reconstruct_cache(table)[0].offset == len(PREFIX)


def test_reused_block_is_not_found():
    cache = make_prefix_cache()
    states = [kv(1, 2, len(PREFIX), 4)]
    assert store_and_restore(cache, states) is not None
    cache.paged_cache.delete_block_table("first")
    cache.paged_cache.delete_block_table("second")
    other = [token + 1 for token in PREFIX]
    while cache.paged_cache.free_block_queue.num_free_blocks:
        cache.store_cache(f"other {len(other)}", other, [{"state": kv(1, 2, len(other), 4)[:2]}])
        other = [*other, 1]
    assert cache.fetch_cache("third", [*PREFIX, 91])[0] is None


def test_index_is_bounded_by_pool():
    cache = make_prefix_cache()
    pool = len(cache.paged_cache.blocks)
    states = [{"state": kv(1, 2, len(PREFIX), 4)}]
    for request in range(10 * pool):
        tokens = [100 + request, *PREFIX[1:]]
        assert cache.store_cache(f"{request}", tokens, states) is not None
        assert cache.fetch_cache(f"{request} again", [*tokens, 91])[0].num_tokens == len(PREFIX)
        cache.paged_cache.delete_block_table(f"{request} again")
        cache.paged_cache.delete_block_table(f"{request}")
    assert 0 < len(vars(cache)[INDEX]) <= pool


def test_index_is_one_to_one():
    index = Index()
    index.add(1, 16, b"a")
    index.add(2, 32, b"b")
    index.add(1, 32, b"c")  # the block was given to another sequence
    assert (index.list_ends(), index.find(32, b"b"), index.find(32, b"c")) == ([32], 2, 1)
    index.add(3, 32, b"b")  # another block was stored for the same prefix
    assert (len(index), index.find(32, b"b")) == (2, 3)
    index.forget(2)
    index.forget(3)
    assert (len(index), index.find(32, b"b")) == (1, None)
