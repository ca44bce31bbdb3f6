"""``dynamic-rope`` and ``internlm-positions``: rows at their own positions, and InternLM's ones."""

from __future__ import annotations

import importlib
from types import SimpleNamespace

import mlx.core as mx
import pytest

from mlx_patches.patches.positions.dynamic_rope import internlm
from mlx_patches.patches.positions.dynamic_rope import patch as dynamic_rope
from mlx_patches.patches.positions.dynamic_rope.probe_internlm import (
    BEYOND,
    HEADS,
    LIMIT,
    NEAR,
    WIDTH,
    WITHIN,
    difference,
    layer,
)

from ..releases.conftest import is_tested


@pytest.fixture(params=[target for target in internlm.PATCH.targets if "Attention" in target.name])
def module(request):
    if not is_tested(request.param.distribution):
        pytest.skip("this set tests another package")
    try:
        return importlib.import_module(request.param.module)
    except ModuleNotFoundError:
        pytest.skip(f"this release has no {request.param.module}")


@pytest.mark.parametrize("kind", ["none", "linear", "dynamic"])
@pytest.mark.parametrize("place", [0, WITHIN, NEAR, LIMIT - 1, LIMIT, BEYOND])
def test_internlm_rotates_as_its_config_says(kind, place, module, ungated):
    ungated(internlm.PATCH)
    assert difference(module, kind, place) <= 1e-5


@pytest.mark.parametrize("kind", ["none", "linear", "dynamic"])
def test_rows_of_internlm_are_rotated_as_alone(kind, module, ungated):
    for patch in (dynamic_rope.PATCH, internlm.PATCH):
        ungated(patch)
    rope = layer(module, kind).rope
    places = [WITHIN, NEAR, BEYOND]
    for length in (1, 3, LIMIT):
        x = mx.random.normal((len(places), HEADS, length, WIDTH), key=mx.random.key(0))
        together = rope(x, offset=mx.array(places))
        for row, place in enumerate(places):
            alone = rope(x[row : row + 1], offset=place)[0]
            assert mx.allclose(together[row], alone, atol=1e-5), (length, place)


def bases_that_do_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        dynamic_rope, "grown_bases", lambda ends, base, *rest: base * (ends == ends)
    )


def ropes_as_they_were_built(monkeypatch: pytest.MonkeyPatch) -> None:
    def construct(init, attention, *args, **kwargs):
        init(attention, *args, **kwargs)

    monkeypatch.setattr(internlm.built, "__code__", construct.__code__)


MUTANTS = {
    "dynamic-rope": bases_that_do_not_grow,
    "internlm-positions": ropes_as_they_were_built,
}
# A call that the check skips; no probe and no family of the lab makes one.
SKIPPED = {"internlm-positions": ((SimpleNamespace(), [[0]], 0), {})}
