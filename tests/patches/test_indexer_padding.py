from types import SimpleNamespace

import mlx.core as mx

from mlx_patches.patches.masks.indexer_padding import patch

NO_LIMIT = 2**31


def caches(processed, limits=None, left=None):
    """A model's caches: a recurrent layer's, then one with a pooling cache."""
    pool = SimpleNamespace(_processed=processed, _lengths=limits or [NO_LIMIT] * len(processed))
    if left is not None:
        pool.left_padding = left
    return [SimpleNamespace(), SimpleNamespace(caches=(SimpleNamespace(), pool))]


def mask_of(cache, length):
    tokens = mx.zeros((2, length), mx.int32)
    if not patch.has_padding(tokens, None, cache, None):
        return None
    return patch.make_text_mask(tokens, None, cache).tolist()


def test_padding_masks():
    assert mask_of(caches([0, 0], left=[2, 0]), 3) == [[False, False, True], [True] * 3]
    assert mask_of(caches([0, 2], left=[4, 0]), 3) == [[False] * 3, [True] * 3]
    assert mask_of(caches([1, 3], [2, 9]), 3) == [[True, False, False], [True] * 3]
    assert mask_of(caches([2, 6], [2, 9], [0, 0]), 1) == [[False], [True]]
    assert mask_of(caches([1, 3], left=[0, 0]), 1) is None
    assert mask_of(caches([1, 3], [4, 6], [0, 0]), 3) is None
    assert mask_of([SimpleNamespace(caches=())], 3) is None
    tokens = mx.zeros((2, 3), mx.int32)
    assert not patch.has_padding(tokens, None, None, None)
    assert not patch.has_padding(tokens, None, caches([1, 3], [2, 9]), tokens)


def test_no_device_reads(device_reads):
    tokens = mx.zeros((2, 3), mx.int32)
    assert patch.has_padding(None, tokens[..., None], caches([1, 3], [2, 9]), None)
    assert patch.make_text_mask(tokens, None, caches([1, 3], [2, 9])) is not None
    assert not device_reads
