import mlx.core as mx
import pytest

from mlx_patches.lab.solo_scenarios import run_saved

from ..releases.conftest import is_needed
from ..releases.models import build_or_skip

caches = pytest.importorskip("mlx_lm.models.cache")

OTHERS = ("cachelist-state", "arrays-restored", "empty-cache-ops")


@pytest.mark.parametrize("family", ["deepseek_v32", "glm_moe_dsa", "kimi_linear"])
def test_models_with_values_of_width_zero(family, beside):
    model = build_or_skip(f"mlx-lm:{family}")
    beside(*(one for one in OTHERS if is_needed(one, "mlx-lm")), "saved-empty")
    cell = run_saved(model)
    assert cell.verdict == "green", cell.detail


def make_fed_caches(width: int) -> list[object]:
    cache = caches.KVCache()
    cache.update_and_fetch(mx.ones((1, 1, 3, 4)), mx.ones((1, 1, 3, width)))
    return [cache]


def test_other_files_are_unchanged(tmp_path, ungated):
    """To the byte, and a file that was saved without the patch loads with it."""
    files = [tmp_path / f"{number}.safetensors" for number in range(2)]
    caches.save_prompt_cache(str(files[0]), make_fed_caches(4), {"own": "entry"})
    ungated("saved-empty")
    caches.save_prompt_cache(str(files[1]), make_fed_caches(4), {"own": "entry"})
    cache, metadata = caches.load_prompt_cache(str(files[0]), return_metadata=True)
    assert isinstance(caches.load_prompt_cache(str(files[0])), list)
    assert files[0].read_bytes() == files[1].read_bytes()
    assert metadata == {"own": "entry"} and cache[0].offset == 3


def test_saved_caches_are_not_changed(tmp_path, ungated):
    cache = make_fed_caches(0)
    before = dict(vars(cache[0]))
    file = str(tmp_path / "cache.safetensors")
    ungated("saved-empty")
    caches.save_prompt_cache(file, cache)
    (loaded,) = caches.load_prompt_cache(file)
    assert type(cache[0]) is type(loaded) is caches.KVCache
    assert all(vars(cache[0])[name] is value for name, value in before.items())


def test_other_errors_are_unchanged(tmp_path, ungated):
    ungated("saved-empty")
    with pytest.raises(Exception) as raised:
        caches.save_prompt_cache(str(tmp_path / "no" / "cache.safetensors"), make_fed_caches(4))
    assert "saved_empty" not in str(raised.value)
