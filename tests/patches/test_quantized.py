"""The contract of quantized batch caches, affine and TurboQuant; see ``contract``."""

import contextlib
import importlib

import mlx.core as mx
import pytest

from mlx_patches.patches._shared.quantized import merge_quantized
from mlx_patches.patches.caches.quantized.affine import dequantize_row
from mlx_patches.patches.caches.quantized.probe import restore_cache
from mlx_patches.probes.quantized_batches import WIDTH, Kind, feed

from ..releases.conftest import is_installed
from ..releases.models import module_or_skip

CLASSES = {
    "batch-quantized": ("mlx_vlm.models.cache", "BatchQuantizedKVCache"),
    "batch-turbo-quant": ("mlx_vlm.turboquant", "BatchTurboQuantKVCache"),
}
PADDING, LENGTHS, TOKENS = [2, 0, 3], [4, 6, 3], 6


@pytest.fixture(params=CLASSES)
def kind(request, ungated):
    module, name = CLASSES[request.param]
    batch = getattr(module_or_skip(module, name), name)
    ungated(request.param)
    return Kind(batch)


# A test of one of the two kinds.
affine_only, turbo_only = (pytest.mark.parametrize("kind", [one], indirect=True) for one in CLASSES)


@pytest.fixture
def batch(kind):
    return kind.batch(PADDING, TOKENS)


def assert_rows(cache, lengths):
    assert (cache._idx - cache.left_padding).tolist() == lengths
    assert cache.offset.tolist() == lengths
    assert cache.size() == cache._idx


def test_filter_removes_common_padding(kind, batch):
    assert_rows(batch, LENGTHS)
    batch.filter(mx.array([2, 0]))
    assert_rows(batch, [3, 4])
    assert batch.size() == 4
    assert not kind.wrong(batch, [3, 4], rows=[2, 0])


def test_trim_returns_count(kind, batch):
    if not batch.is_trimmable():
        assert batch.trim(2) == 0
        return
    assert batch.trim(2) == 2
    assert_rows(batch, [2, 4, 1])
    assert not kind.wrong(batch, [2, 4, 1])
    assert batch.trim(100) == TOKENS - 2 + 1  # ``wrong`` fed one more token
    assert batch.size() == 0


def test_restored_batch_continues(kind, batch):
    again = restore_cache(batch)
    assert_rows(again, LENGTHS)
    other = kind.batch([1], 3)
    again.extend(other)
    again.filter(mx.array([1, 3]))
    assert again.extract(0).offset == 6
    assert not kind.wrong(again, [6, 2], rows=[1, 0])


def test_padded_prompt_after_restored_history(kind, batch):
    again = restore_cache(batch)
    again.prepare(lengths=[1, 3, 2], right_padding=[2, 0, 1])
    feed(again, list(enumerate(LENGTHS)), 3)
    again.finalize()
    assert_rows(again, [5, 9, 5])
    assert not kind.wrong(again, [5, 9, 5])


def test_empty_batch_methods(kind):
    cache = kind.batch([2, 0, 1])
    cache.prepare(lengths=[1, 1, 1], right_padding=[0, 0, 0])
    cache.finalize()
    cache.filter(mx.array([0, 1]))
    cache.extend(kind.batch([1]))
    assert (cache.empty(), cache.size(), cache.nbytes) == (True, 0, 0)
    assert cache.left_padding.tolist() == [2, 0, 1]
    assert cache.extract(0).offset == 0
    again = restore_cache(cache)
    assert again.empty()
    feed(again, [(0, -2), (1, 0), (2, -1)], 4)
    assert_rows(again, [2, 4, 3])
    assert not kind.wrong(again, [2, 4, 3])


def test_row_of_only_padding(kind):
    cache = kind.batch([0], 3)
    cache.extend(kind.batch([0]))
    assert_rows(cache, [3, 0])
    assert not kind.wrong_solo(cache.extract(1), 1, 0)
    cache.filter(mx.array([1]))
    assert_rows(cache, [0])
    assert cache.size() == 0
    feed(cache, [(0, 0)], 2)
    assert not kind.wrong(cache, [2], rows=[0])


def test_unpadded_prompt_moves_no_array(kind, batch):
    parts = leaves(batch)
    batch.prepare(lengths=[1, 1, 1], right_padding=[0, 0, 0])
    batch.finalize()
    assert all(one is two for one, two in zip(parts, leaves(batch), strict=True))


def merge_rows(kind, rows):
    if kind.turbo:
        return kind.module.TurboQuantKVCache.merge(rows)
    return merge_quantized(kind.batch_class, rows)


def test_float_row_is_quantized(kind):
    plain, empty = (importlib.import_module("mlx_vlm.models.cache").KVCache() for _ in range(2))
    feed(plain, [(1, 0)], 4)
    assert not kind.wrong(merge_rows(kind, [kind.solo(0, 6), plain, empty]), [6, 4, 0])


def test_other_quantization_does_not_join(kind):
    settings = {"bits": 3} if kind.turbo else {"group_size": 32, "bits": 8}
    other = type(kind.solo(0, 0))(**settings)
    feed(other, [(1, 0)], 4)
    with pytest.raises(ValueError, match="quantized alike"):
        merge_rows(kind, [kind.solo(0, 6), other])


@contextlib.contextmanager
def without_reads(monkeypatch):
    def read(*_):
        raise AssertionError("a value was read from the device")

    with monkeypatch.context() as patched:
        for name in ("item", "tolist", "__bool__", "__int__", "__float__"):
            patched.setattr(mx.array, name, read)
        yield


def test_decode_reads_no_device(kind, batch, beside, monkeypatch):
    beside("quantized-masks")
    feed(batch, list(enumerate(LENGTHS)), 1)
    step = mx.ones((3, 2, 1, WIDTH))
    with without_reads(monkeypatch):
        with pytest.raises(AssertionError, match="device"):
            batch.offset.tolist()
        batch.make_mask(1, return_array=False, window_size=None)
        batch.update_and_fetch(step, step)
        batch.size()
        assert batch.state is not None
        if not kind.turbo:
            assert batch.nbytes


def leaves(cache):
    from mlx.utils import tree_flatten

    return [part for _, part in tree_flatten((cache.keys, cache.values))]


def read_packed(cache, index, start, end):
    return [part[index, :, start:end].tolist() for part in (*cache.keys, *cache.values)]


@affine_only
def test_padding_of_each_row(kind):
    cache = kind.batch([0, 0], 10)
    cache.prepare(right_padding=[2, 5])
    cache.finalize()
    assert cache._idx == 10
    for row, length in enumerate((8, 5)):
        one = cache.extract(row)
        assert one.offset == length
        assert read_packed(one, 0, 0, length) == read_packed(kind.solo(row, length), 0, 0, length)

    cache = kind.batch([0, 0], 10)
    cache.prepare(lengths=[8, 5], right_padding=[2, 5])
    cache.finalize()
    cache.filter(mx.array([1]))
    assert cache.size() == 5
    assert not kind.wrong(cache, [5], rows=[1])

    with pytest.raises(ValueError, match="empty"):
        kind.batch([0, 0], 3).prepare(left_padding=[1, 0])


@affine_only
def test_merge_and_extract_are_bit_identical(kind):
    rows = [kind.solo(row, length) for row, length in enumerate((5, 0, 270))]
    batch = merge_quantized(kind.batch_class, rows)
    for row, solo in enumerate(rows):
        out = batch.extract(row)
        assert (out.offset, out.bits, out.group_size) == (solo.offset, solo.bits, solo.group_size)
        if solo.offset:
            assert read_packed(out, 0, 0, solo.offset) == read_packed(solo, 0, 0, solo.offset)


@affine_only
def test_other_side_is_unchanged(kind):
    solo = kind.solo(0, 5)
    before = read_packed(solo, 0, 0, 5)
    batch = merge_quantized(kind.batch_class, [solo, kind.solo(1, 3)])
    feed(batch, [(0, 9), (1, 9)], 1)
    assert read_packed(solo, 0, 0, 5) == before
    assert solo.offset == 5
    cache, other = kind.batch([0]), kind.batch([0, 2], 5)
    parts = other.keys
    cache.extend(other)
    assert other.keys is parts
    assert not kind.wrong(cache, [0, 5, 3], rows=[2, 0, 1])


def loud(channels, tokens=4):
    """Keys and values of one row; these channels have larger values."""
    drawn = mx.random.normal((1, 2, tokens, WIDTH), key=mx.random.key(sum(channels)))
    gain = mx.ones((WIDTH,))
    gain[mx.array(channels)] = 9.0
    return drawn * gain, -drawn * gain


def split(module, channels):
    """A solo cache with more bits for these channels."""
    try:
        cache = module.TurboQuantKVCache(bits=3.5, key_bits=3.5, value_bits=3.5)
    except TypeError:
        pytest.skip("this release has one number of bits a side")
    cache.update_and_fetch(*loud(channels))
    assert set(channels) <= set(cache.key_codec.high_idx.tolist())
    return cache


def near(cache, row, start, keys):
    seen = cache.dequantize()[0][row, :, start : cache._idx]
    return (mx.linalg.norm(seen - keys[0]) / mx.linalg.norm(keys)).item() < 0.2


@turbo_only
@pytest.mark.parametrize("extends", [False, True])
def test_rows_of_different_codecs(kind, extends):
    channels = [[*range(16)], [*range(16, 32)]]
    rows, merge = [split(kind.module, own) for own in channels], kind.module.TurboQuantKVCache.merge
    batch = merge(rows[:1] if extends else rows)
    if extends:
        batch.extend(merge(rows[1:]))
    for row, own in enumerate(channels):
        assert near(batch, row, 0, loud(own)[0])


@turbo_only
def test_restored_batch_reads_channels(kind):
    batch = kind.module.TurboQuantKVCache.merge([split(kind.module, list(range(5, 21)))])
    again = restore_cache(batch)
    assert mx.array_equal(again.dequantize()[0], batch.dequantize()[0]).item()
    assert again.key_codec.high_idx.tolist() == batch.key_codec.high_idx.tolist()


@turbo_only
def test_states_are_text_and_load(kind):
    cache = kind.batch([0, 0])
    before = len(cache.meta_state)
    feed(cache, [(0, 0), (1, 0)], 3)
    assert all(isinstance(entry, str) for entry in cache.meta_state)
    assert len(cache.meta_state) == before + 1
    cache = kind.batch([2, 0], 5)
    again = type(cache).from_state(cache.state, cache.meta_state[:-1])
    feed(again, [(0, 3), (1, 5)], 1)
    assert not kind.wrong(again, [4, 6])


@turbo_only
def test_late_padding_reaches_attention(kind):
    cache = kind.batch([0])
    if not hasattr(cache, "fused_attention_eligible"):
        pytest.skip("this release has one way of attention for batches")
    cache.prepare(right_padding=[2])
    feed(cache, [(0, 0)], 5)
    cache.finalize()
    assert not cache.fused_attention_eligible
    assert kind.module.TurboQuantKVCache.merge([kind.solo(0, 3)]).fused_attention_eligible
    assert not kind.module.TurboQuantKVCache.merge(
        [kind.solo(0, 3), kind.solo(1, 1)]
    ).fused_attention_eligible


CACHES = "mlx_lm.models.cache" if is_installed("mlx-lm") else "mlx_vlm.models.cache"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_plain_row_dtype_and_size(dtype):
    caches = importlib.import_module(CACHES)
    plain, row = caches.KVCache(), caches.QuantizedKVCache(group_size=32, bits=8)
    assert dequantize_row(plain) is plain
    assert dequantize_row(row).keys is None
    row.update_and_fetch(*[mx.ones((1, 2, 5, 64), getattr(mx, dtype))] * 2)
    out = dequantize_row(row)
    assert (out.offset, out.keys.shape) == (5, (1, 2, 5, 64))
    assert out.keys.dtype == getattr(mx, dtype)
    assert row.offset == 5


@pytest.mark.skipif(not is_installed("mlx-lm"), reason="the generator is mlx-lm's")
@pytest.mark.parametrize("heads", [1, 2])
def test_quantized_prompts_equal_solo(heads, ungated):
    generate = importlib.import_module("mlx_lm.generate")
    if not hasattr(generate, "BatchGenerator") or not hasattr(generate, "_merge_caches"):
        pytest.skip("this release batches no prompts with a history")
    ungated("quantized-merge")
    model, caches = _llama(heads), importlib.import_module(CACHES)
    prompts = [[5, 9, 2, 7], [3, 3, 8]]
    histories = [list(range(1, 12)), list(range(20, 26))]
    rows, expected = [], []
    for history, prompt in zip(histories, prompts, strict=True):
        cache = [caches.QuantizedKVCache(group_size=32, bits=4) for _ in model.layers]
        model(mx.array([history]), cache=cache)
        rows.append(cache)
        expected.append(_greedy(model, prompt, [dequantize_row(layer) for layer in cache]))
    generator = generate.BatchGenerator(model, max_tokens=5)
    uids = generator.insert(prompts, caches=rows)
    assert _spoken(generator, uids) == expected


def _greedy(model, prompt, cache, count=5):
    tokens, generated = prompt, []
    for _ in range(count):
        tokens = [mx.argmax(model(mx.array([tokens]), cache=cache)[0, -1]).item()]
        generated += tokens
    return generated


def _spoken(generator, uids):
    generated = {uid: [] for uid in uids}
    for _ in range(30):
        answers = generator.next()
        for answer in answers[1] if isinstance(answers, tuple) else answers:
            generated[answer.uid].append(answer.token)
        if all(len(tokens) == 5 for tokens in generated.values()):
            break
    return [generated[uid] for uid in uids]


def _llama(heads=2):
    from mlx.utils import tree_map

    module = importlib.import_module("mlx_lm.models.llama")
    sizes = {"hidden_size": 128, "num_hidden_layers": 2, "intermediate_size": 96, "vocab_size": 64}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": heads}
    model = module.Model(module.ModelArgs(model_type="llama", rms_norm_eps=1e-6, **sizes))
    keys = iter(mx.random.split(mx.random.key(0), 100))

    def draw(x):
        if x.ndim == 1:
            return x
        return mx.random.normal(x.shape, key=next(keys)) * x.shape[-1] ** -0.5 * 1.4

    model.update(tree_map(draw, model.parameters()))
    return model


def test_solo_row_is_not_touched(ungated):
    ungated("quantized-merge")
    caches = importlib.import_module(CACHES)
    if not hasattr(caches.KVCache, "merge"):
        pytest.skip("this release merges no caches by a method of theirs")
    row, other = (caches.QuantizedKVCache(group_size=32, bits=4) for _ in range(2))
    feed(row, [(0, 0)], 5)
    feed(other, [(1, 0)], 3)
    before = [part.tolist() for part in (*row.keys, *row.values)]
    batch = caches.QuantizedKVCache.merge([row, other])
    feed(batch, [(0, 5), (1, 3)], 1)
    assert [part.tolist() for part in (*row.keys, *row.values)] == before


@pytest.mark.skipif(not is_installed("mlx-lm"), reason="the model is mlx-lm's")
def test_solo_quantized_run_is_bit_identical(ungated):
    def logits():
        model, caches = _llama(), importlib.import_module(CACHES)
        cache = [caches.QuantizedKVCache(group_size=32, bits=4) for _ in model.layers]
        chunks = ([1, 2, 3, 4], [5, 6, 7], [8])
        return [model(mx.array([chunk]), cache=cache).tolist() for chunk in chunks]

    before = logits()
    ungated("quantized-merge")
    assert logits() == before
