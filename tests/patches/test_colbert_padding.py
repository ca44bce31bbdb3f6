import pytest

from mlx_patches.core.distributions import source_file
from mlx_patches.patches.masks.colbert_padding.probe import compare

pytestmark = pytest.mark.skipif(
    not source_file("mlx_vlm.models.lfm2_colbert"), reason="no LFM2-ColBERT here"
)


@pytest.mark.parametrize(("length", "short"), [(17, 1), (17, 16), (40, 3), (9, 9)])
def test_batch_equals_solo(length, short, ungated):
    import mlx_vlm.models.lfm2_colbert as family

    ungated("colbert-padding")
    assert compare(family, length, short) < 1e-4
