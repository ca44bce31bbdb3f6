import itertools

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from mlx_patches.lab import Family, NotBuilt
from mlx_patches.lab.build import build, differ, sensitivity
from mlx_patches.lab.child import build_family
from mlx_patches.lab.shrink import VOCABULARY

from .conftest import is_installed

pytestmark = pytest.mark.slow

# Families that every tested release set of their distribution has.
SAMPLE = {"mlx-lm": ("llama", "gemma3_text", "mamba", "olmo2"), "mlx-vlm": ("gemma3", "qwen2_vl")}
CASES = [
    pytest.param(Family(distribution, name), id=f"{distribution}:{name}")
    for distribution, names in SAMPLE.items()
    if is_installed(distribution)
    for name in names
]
PRESENT = [distribution for distribution in SAMPLE if is_installed(distribution)]


@pytest.mark.parametrize("family", CASES)
def test_family_builds_and_is_sensitive(family):
    model = build(family)
    assert model.vocabulary == VOCABULARY
    assert sensitivity(model) > 1e-3


# Families whose kernels round differently in a batch, most in state-space steps.
NOISY = ("llama", "gemma3_text", "olmo2", "mamba2", "plamo2")


@pytest.mark.skipif("mlx-lm" not in PRESENT, reason="its families have the most noise")
@pytest.mark.parametrize("name", NOISY)
def test_bfloat16_tolerance(name):
    from mlx_patches.lab import TOLERANCES, scenarios

    model = build(Family("mlx-lm", name), dtype="bfloat16")
    kinds = {str(value.dtype) for _, value in tree_flatten(model.module.parameters())}
    assert "mlx.core.bfloat16" in kinds
    assert model.tolerance == TOLERANCES["bfloat16"]
    cell = scenarios.SCENARIOS["equal-lengths"](model)
    assert cell.verdict == "green"
    assert cell.figure <= model.tolerance.logits / 2


@pytest.mark.skipif("mlx-lm" not in PRESENT, reason="the family is one of mlx-lm's")
def test_bfloat16_engine():
    from mlx_patches.lab import scenarios

    model = build(Family("mlx-lm", "minicpm"), dtype="bfloat16")
    cell = scenarios.SCENARIOS["engine"](model)
    # The model's logits are small: rounding a log-probability changes it by 0.2 of their scale.
    assert cell.verdict == "n/a" or (cell.verdict == "green" and cell.figure < 0.01), cell


SMALL = [0.0, 0.02, 0.0, 0.0]  # bfloat16 rounds log-probabilities of 1.4 by up to 0.011
LARGE = [0.0, 2.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("dtype", "rows", "verdict"),
    [
        pytest.param("bfloat16", [(1, SMALL)], "green", id="the same token"),
        pytest.param("bfloat16", [(0, [0.0, 0.0, 0.02, 0.01])], "red", id="beyond the rounding"),
        pytest.param("bfloat16", [(0, [0.0, 0.008, 0.0, 0.0])], "insensitive", id="rounded away"),
        pytest.param("float32", [(0, [0.0, 0.008, 0.0, 0.0])], "red", id="a float32 engine"),
        pytest.param("bfloat16", [(0, LARGE)], "red", id="another token"),
        pytest.param(
            "bfloat16", [(0, [0.0, 0.008, 0.0, 0.0]), (0, LARGE)], "red", id="one row is wrong"
        ),
    ],
)
def test_engine_rounding_is_insensitive(dtype, rows, verdict):
    from mlx_patches.lab import TOLERANCES, Generated, compare

    generated = [[Generated(token)] for token, _ in rows]
    solo = [[mx.array(logits)] for _, logits in rows]
    assert compare.compare_generated(generated, solo, TOLERANCES[dtype]).verdict == verdict


def test_nan_log_probabilities():
    from mlx_patches.lab import TOLERANCES, Generated, compare

    for token in (0, 1):
        generated = [[Generated(token, every=mx.full((4,), float("nan"), mx.bfloat16))]]
        cell = compare.compare_generated(generated, [[mx.array(SMALL)]], TOLERANCES["bfloat16"])
        assert cell.verdict == "red"


@pytest.mark.parametrize("distribution", PRESENT)
def test_unbuildable_family_is_one_line(distribution):
    with pytest.raises(NotBuilt, match="no_such_family") as raised:
        build(Family(distribution, "no_such_family"))
    assert len(str(raised.value).splitlines()) == 1


@pytest.mark.skipif("mlx-lm" not in PRESENT, reason="its llama has them")
def test_variants_differ():
    family = Family("mlx-lm", "llama")
    models = [build(family), *(build(family, variant=name) for name in ("linear", "untied"))]
    assert all(differ(one, other) for one, other in itertools.combinations(models, 2))
    assert not differ(models[0], build(family))


@pytest.mark.skipif("mlx-lm" not in PRESENT, reason="its llama has them")
def test_ineffective_variant_is_not_built():
    with pytest.raises(NotBuilt, match="tied changes nothing"):
        build_family(Family("mlx-lm", "llama"), variant="tied")
