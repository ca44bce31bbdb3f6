"""``xtc-rows``: a row of a batch keeps the tokens that it keeps alone."""

from types import SimpleNamespace

import pytest

from ..releases.models import module_or_skip

# The logits of a single request are left to the release.
SKIPPED = {"xtc-rows": ((SimpleNamespace(ndim=1),), {})}


@pytest.mark.parametrize("package", ["mlx_lm", "mlx_vlm"])
def test_rows_keep_own_tokens(package, ungated):
    mx = pytest.importorskip("mlx.core")
    sampling = module_or_skip(f"{package}.sample_utils")
    if not hasattr(sampling, "apply_xtc"):
        pytest.skip("this release has no XTC")
    ungated("xtc-rows")
    logits = mx.log(mx.array([[0.5, 0.3, 0.15, 0.05], [0.02, 0.9, 0.04, 0.04]]))
    both = sampling.apply_xtc(logits, 1.0, 0.1, [])
    alone = [sampling.apply_xtc(logits[row : row + 1], 1.0, 0.1, []) for row in range(2)]
    assert mx.array_equal(both, mx.concatenate(alone))
    # The first row loses its top two tokens, the second none.
    assert mx.isinf(both).tolist() == [[True, True, False, False], [False] * 4]
