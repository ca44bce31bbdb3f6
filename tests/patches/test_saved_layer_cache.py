import mlx.core as mx
import pytest

from mlx_patches.lab.solo_scenarios import run_saved
from mlx_patches.patches.caches.saved_layer_cache import patch

from ..releases.models import build_or_skip

caches = pytest.importorskip("mlx_lm.models.cache")


def test_model_continues_from_file(ungated):
    model = build_or_skip("mlx-lm:deepseek_v41")
    ungated("saved-layer-cache")
    cell = run_saved(model)
    assert cell.verdict == "green", cell.detail


def test_other_files_are_unchanged(tmp_path, ungated):
    """To the byte, and a file that was saved without the patch loads with it."""
    files = [tmp_path / f"{number}.safetensors" for number in range(2)]
    cache = caches.KVCache()
    cache.update_and_fetch(*[mx.ones((1, 1, 3, 4))] * 2)
    caches.save_prompt_cache(str(files[0]), [cache], {"own": "entry"})
    ungated("saved-layer-cache")
    caches.save_prompt_cache(str(files[1]), [cache], {"own": "entry"})
    (loaded,), metadata = caches.load_prompt_cache(str(files[0]), return_metadata=True)
    assert files[0].read_bytes() == files[1].read_bytes()
    assert metadata == {"own": "entry"} and loaded.offset == 3


def test_saved_caches_are_not_changed(tmp_path, ungated):
    model = pytest.importorskip(patch.MODEL)
    cache = model.LayerCache(4)
    cache.update_window(mx.ones((1, 3, 2)))
    before = dict(vars(cache))
    ungated("saved-layer-cache")
    caches.save_prompt_cache(str(tmp_path / "cache.safetensors"), [cache])
    (loaded,) = caches.load_prompt_cache(str(tmp_path / "cache.safetensors"))
    assert type(cache) is type(loaded) is model.LayerCache
    assert all(vars(cache)[name] is value for name, value in before.items())
