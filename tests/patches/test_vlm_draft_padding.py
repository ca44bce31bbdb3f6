"""``vlm-draft-padding``: a row that was moved is masked where it was."""

from ..releases.models import module_or_skip


def test_padding_that_was_read_is_unchanged(ungated):
    caches = module_or_skip("mlx_vlm.models.cache", "BatchKVCache")
    mx = module_or_skip("mlx.core")
    ungated("vlm-draft-padding")
    cache = caches.BatchKVCache([1, 0])
    keys = mx.zeros((2, 1, 4, 8))
    cache.update_and_fetch(keys, keys)
    before = cache.left_padding
    cache.prepare(right_padding=[0, 2])
    cache.finalize()
    assert (before.tolist(), cache.left_padding.tolist()) == ([1, 0], [1, 2])
    cache.finalize()
    assert cache.left_padding.tolist() == [1, 2]
