"""``vlm-request-adapter``: the names of prefix caches on disk."""

import pytest

from mlx_patches.patches.server.vlm_request_adapter import patch


@pytest.mark.parametrize(
    ("adapter", "given", "name"),
    [("a", "m", "m@a"), ("b", "m", "m@b"), (None, "m", "m"), ("a", "m_s4-73", "m_s4-73")],
)
def test_cache_on_disk_has_the_adapters_name(adapter, given, name, monkeypatch):
    monkeypatch.setattr(patch, "is_vlm_starting", lambda: False)
    patch.choose_adapter("m", adapter)
    assert patch.name_adapter(given) == name
