import importlib

import pytest

from mlx_patches.patches.positions.indexer_rope import patch as indexer_rope
from mlx_patches.patches.positions.indexer_rope.probe import make

from ..releases.models import present

INDEXERS = present("mlx_lm.models.deepseek_v32", "mlx_vlm.models.deepseek_v32.language")


@pytest.mark.parametrize("module", INDEXERS)
def test_glm_indexer_equals_release(module, ungated):
    module = importlib.import_module(module)
    released = make(module, "glm_moe_dsa").rope.traditional
    ungated("indexer-rope")
    assert make(module, "glm_moe_dsa").rope.traditional == released
    assert not make(module, "deepseek_v32").rope.traditional


def test_config_can_ask_for_pairs():
    class Args:
        model_type = "deepseek_v32"
        indexer_rope_interleave = True

    assert not indexer_rope.is_paired_by_halves(Args())
