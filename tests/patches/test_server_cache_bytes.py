"""``server-cache-bytes``: the smaller limit applies, and nothing else is limited."""

from __future__ import annotations

from importlib import metadata
from types import SimpleNamespace

import pytest
from packaging.version import Version

from mlx_patches.patches.server.server_cache_bytes.patch import begin_limited


def begun(own, most):
    """The limit of a prompt cache after a server started with it."""
    cache = SimpleNamespace() if own is None else SimpleNamespace(max_bytes=own)
    seen = []
    provider = SimpleNamespace(cli_args=SimpleNamespace(prompt_cache_bytes=most))
    begin_limited(lambda *args, **kwargs: seen.append((args, kwargs)), "server", provider, cache)
    assert seen == [(("server", provider, cache), {})]
    return getattr(cache, "max_bytes", None)


@pytest.mark.parametrize(
    ("own", "most", "limit"),
    [(1 << 63, 100, 100), (50, 100, 50), (1 << 63, None, 1 << 63), (None, 100, None), (9, 0, 0)],
)
def test_smaller_limit_applies(own, most, limit):
    assert begun(own, most) == limit


def test_provider_without_command_line():
    cache = SimpleNamespace(max_bytes=7)
    begin_limited(lambda *args: None, "server", SimpleNamespace(), cache)
    assert cache.max_bytes == 7


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
