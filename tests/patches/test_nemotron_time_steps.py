import mlx.core as mx
import pytest

from mlx_patches.patches.models.nemotron_time_steps.probe import run_mixer

from ..releases.models import module_or_skip


def test_configured_limits_are_kept(ungated):
    module = module_or_skip("mlx_lm.models.nemotron_h")
    if not hasattr(module.ModelArgs, "__post_init__"):
        pytest.skip("this release takes its limits only from the config")
    x = mx.random.normal((1, 8, 32), key=mx.random.key(1))
    released = run_mixer(module, x, time_step_limit=(0.01, 0.2))
    ungated("nemotron-time-steps")
    assert mx.array_equal(run_mixer(module, x, time_step_limit=(0.01, 0.2)), released)
