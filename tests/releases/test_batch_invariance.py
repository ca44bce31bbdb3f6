import subprocess
import sys
from types import SimpleNamespace

import mlx.core as mx
import pytest

import mlx_patches
from mlx_patches.activation.session import session
from mlx_patches.probes import NotApplicable
from mlx_patches.probes.batch_invariance import TOLERANCE, batch_cache, measure, random_rows, tiny

from .conftest import is_installed

pytestmark = pytest.mark.slow

needs_vlm = pytest.mark.skipif(not is_installed("mlx-vlm"), reason="this set has no mlx-vlm")
needs_lm = pytest.mark.skipif(not is_installed("mlx-lm"), reason="this set has no mlx-lm")

SLIDING, FULL = "sliding_attention", "full_attention"
SHAPES = [
    {"num_kv_shared_layers": 0},
    {"num_kv_shared_layers": 0, "sliding_window": 16, "layer_types": [SLIDING] * 3 + [FULL]},
    {"num_hidden_layers": 6, "layer_types": [SLIDING, FULL] * 3},
    {"layer_types": [FULL] * 4},
    {"seed": 7},
]
LENGTHS = [(5, 9), (1, 2, 17), (12, 12), (30, 4, 8, 21)]


def has_defect() -> bool:
    import importlib.metadata

    from packaging.version import Version

    return Version("0.4.3") <= Version(importlib.metadata.version("mlx-vlm")) < Version("0.5.0")


@pytest.fixture
def applied():
    yield mlx_patches.apply
    mlx_patches.restore()


@needs_vlm
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_gemma4_batch_equals_solo(shape, lengths, applied):
    model = tiny("mlx-vlm", "gemma4", **shape)
    without = measure(model, lengths)
    assert without.red == has_defect(), without.detail
    assert without.figure > 0.5 or not has_defect()
    applied()
    with_ = measure(model, lengths)
    assert with_.figure <= TOLERANCE, with_.detail


@needs_vlm
def test_solo_generation_is_bit_identical(beside):
    model = tiny("mlx-vlm", "gemma4")
    (prompt,), (continuation,) = random_rows([11], 14)

    def run():
        cache = model.make_cache()
        steps = [model.call([prompt], cache)]
        steps += [model.call([[token]], cache) for token in continuation]
        return [step.tolist() for step in steps]

    before = run()
    beside("offset-alias", "left-padding-alias", "frozen-state")
    assert run() == before
    mx.clear_cache()


ASKED = """
import mlx_patches, mlx_lm.models.qwen2
mlx_patches.apply()
print(*sorted({outcome.patch for outcome in mlx_patches.status()}))
"""


@needs_lm
def test_model_gets_only_its_row():
    """In a new process: this one may have imported other models."""
    always = filter(session().has_code, session().matrix.always)
    row = {*always, *session().gate.patches_for("qwen2", "mlx-lm")}
    row = set(filter(session().relevant, row))
    done = subprocess.run([sys.executable, "-c", ASKED], capture_output=True, text=True)
    assert done.stdout.split() == sorted(row), done.stderr


@needs_lm
def test_llama_batch_is_right():
    result = measure(tiny("mlx-lm", "llama"), (5, 9, 3))
    assert result.figure <= TOLERANCE, result.detail


@needs_vlm
def test_gemma4_import_activates_row(applied):
    tiny("mlx-vlm", "gemma4")
    applied()
    row = set(filter(session().relevant, session().gate.patches_for("gemma4", "mlx-vlm")))
    assert row
    assert row <= {outcome.patch for outcome in mlx_patches.status()}


def test_unknown_cache_is_not_applicable():
    with pytest.raises(NotApplicable, match="no batch cache for object"):
        batch_cache(SimpleNamespace(make_cache=lambda: [object()]), [0])
