import pytest

from mlx_patches.patches.caches.prefix_chunks import patch
from mlx_patches.patches.caches.prefix_chunks.probe import CHUNK, make_chunked_row

from ..releases.models import module_or_skip


@pytest.fixture
def caches():
    return module_or_skip("mlx_vlm.models.cache", "ChunkedKVCache")


@pytest.mark.parametrize("length", [0, CHUNK - 1, CHUNK, CHUNK + 3])
def test_plain_cache_counts_tokens(caches, length):
    row = make_chunked_row(caches, length)
    made = patch.as_plain(row)
    assert isinstance(made, caches.KVCache)
    assert made.offset == length
    if length:
        dropped = row.start_position
        assert made.keys.shape[2] == length
        assert made.keys[..., dropped:, :].tolist() == row.keys.tolist()
        assert made.values[..., dropped:, :].tolist() == row.values.tolist()
        assert not made.keys[..., :dropped, :].any()


def test_other_cache_joins_unchanged(caches):
    rows = [caches.KVCache(), caches.RotatingKVCache(max_size=4)]
    assert all(new is old for new, old in zip(patch.convert_to_plain(rows), rows, strict=True))
