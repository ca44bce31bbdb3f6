import mlx.core as mx
import pytest

from mlx_patches.probes.batch_invariance import measure, tiny

from ..releases.models import or_skip


@pytest.fixture
def repaired(beside):
    beside("offset-alias", "mask-from-cache-list", "shared-layer-offset", "altup-batch")


@pytest.mark.parametrize("lengths", [(5, 9), (9, 3, 6), (12, 2)])
@or_skip()
def test_batch_equals_solo(distribution, repaired, lengths):
    result = measure(tiny(distribution, "gemma3n"), lengths)
    assert not result.red, result.detail


def test_all_releases_equal_mlx_lm_0_32(distribution, repaired):
    """The logits equal the fixed release's for the same weights and config."""
    fields = {"laurel_rank": 8, "altup_correct_scale": True, "altup_coef_clip": 120.0}
    model = tiny(distribution, "gemma3n", **fields)
    logits = model.call([list(range(1, 8))], model.make_cache())[0, -1, :4]
    assert mx.allclose(logits, mx.array([-0.94541, -0.17857, -0.07295, 1.32236]), atol=1e-3)
