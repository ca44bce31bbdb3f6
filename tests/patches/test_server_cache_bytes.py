from importlib import metadata
from types import SimpleNamespace

import pytest
from packaging.version import Version

from mlx_patches.patches.server.server_cache_bytes.patch import limit_bytes


@pytest.mark.parametrize(
    ("own", "most", "limit"),
    [(1 << 63, 100, 100), (50, 100, 50), (1 << 63, None, 1 << 63), (9, 0, 0)],
)
def test_smaller_limit_applies(own, most, limit):
    cache = SimpleNamespace(max_bytes=own)
    limit_bytes(SimpleNamespace(cli_args=SimpleNamespace(prompt_cache_bytes=most)), cache)
    assert cache.max_bytes == limit


def test_provider_without_command_line():
    cache = SimpleNamespace(max_bytes=7)
    limit_bytes(SimpleNamespace(), cache)
    assert cache.max_bytes == 7


def test_cache_without_limit_gets_none():
    cache = SimpleNamespace()
    limit_bytes(SimpleNamespace(cli_args=SimpleNamespace(prompt_cache_bytes=100)), cache)
    assert not vars(cache)


def test_prompt_above_limit_is_not_kept():
    server = pytest.importorskip("mlx_lm.server")
    try:
        cache = server.LRUPromptCache(10, 100)
    except TypeError:
        pytest.skip("this release's prompt cache has no limit of bytes")
    # mlx-lm 0.31.1 keeps the newest prompt, whatever its size; later releases do not.
    large = 500 if Version(metadata.version("mlx-lm")) < Version("0.31.2") else 0
    for first, (nbytes, kept) in enumerate([(60, 60), (30, 90), (500, large), (40, 40)]):
        layer = SimpleNamespace(nbytes=nbytes, is_trimmable=lambda: True)
        cache.insert_cache("model", [first, 1], [layer])
        assert cache.nbytes == kept
    assert cache.nbytes == 40
    assert len(cache) == 1
