import importlib

import mlx.core as mx
import pytest

from mlx_patches.core.distributions import source_file
from mlx_patches.lab import Family
from mlx_patches.lab.build import build
from mlx_patches.patches.models.ngram_context.patch import pad_tokens

pytestmark = pytest.mark.skipif(
    not source_file("mlx_lm.models.longcat_flash_ngram"), reason="no such model here"
)


def test_rows_equal_solo(ungated):
    ungated("ngram-context")
    model = build(Family("mlx-lm", "longcat_flash_ngram")).module
    release = importlib.import_module("mlx_lm.models.cache")
    rows = []
    for history in ([3], [1, 4], [1, 5, 9, 2, 6]):
        rows.append(release.make_prompt_cache(model))
        model(mx.array([history]), cache=rows[-1])
    batch = [layers[0].merge(list(layers)) for layers in zip(*rows, strict=True)]
    for token in (7, 8, 9):
        together = model(mx.array([[token]] * len(rows)), cache=batch)
        for number, row in enumerate(rows):
            solo = model(mx.array([[token]]), cache=row)
            assert mx.abs(together[number] - solo[0]).max().item() < 2e-3


def test_full_context_is_unchanged():
    context = mx.array([[1, 2, 3]])
    cache = [context]
    pad_tokens(cache, 3)
    assert cache[0] is context
    pad_tokens(cache, 5)
    assert cache[0].tolist() == [[0, 0, 1, 2, 3]]
    assert cache[0].dtype == context.dtype
