import importlib
import sys
from pathlib import Path

import pytest

import mlx_patches
from mlx_patches import status
from mlx_patches.core.packages import MODELS

pytestmark = pytest.mark.slow

OURS = Path(mlx_patches.__file__).parent
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def engine():
    with pytest.MonkeyPatch.context() as context:
        context.syspath_prepend(ROOT)
        yield importlib.import_module("benchmarks.engine")


def test_only_one_copy_is_patched(engine):
    from mlx.utils import tree_flatten

    (family,) = engine.find_family("llama")
    before = _modules()
    two = engine.sides(family, engine.SHAPES["tiny"])
    assert _modules() == before
    assert len({type(side.model.module) for side in two}) == 2
    weights = [dict(tree_flatten(side.model.module.parameters())) for side in two]
    assert all(weights[1][name] is value for name, value in weights[0].items())
    held = [dict(side.copy.modules) for side in two]
    for turn in (0, 1, 0):
        with engine.patches_in(two[turn]):
            assert _modules() == before
            with two[turn].copy.active():
                applied = {outcome.target for outcome in status().applied}
                # The copies share all other modules, such as those of FastAPI.
                paths = {path for path in applied if path.partition(".")[0] in MODELS}
                assert any(map(_is_patched, paths))
            with two[1 - turn].copy.active():
                assert any(path.partition(":")[0] in sys.modules for path in paths)
                assert not any(map(_is_patched, paths))
        for side in two:
            with side.copy.active():
                assert not any(map(_is_patched, paths))
    found = engine.rounds(two, [[1, 2, 3]], 1, (4, 60.0), "wall")
    assert [one.turn for one in found] == [0, 1, 0, 1]
    assert [side.copy.modules for side in two] == held
    assert _modules() == before


def _modules() -> dict[str, object]:
    return {
        name: module for name, module in sys.modules.items() if name.partition(".")[0] in MODELS
    }


def _is_patched(path: str) -> bool:
    """Whether a live attribute, ``module:Qualified.name``, is a function of ours."""
    module, _, name = path.partition(":")
    found = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, "__dict__", {}).get(part)
    found = getattr(found, "fget", None) or getattr(found, "__func__", found)
    code = getattr(found, "__code__", None)
    return code is not None and Path(code.co_filename).is_relative_to(OURS)


def test_slow_copy_does_not_count(engine):
    """The second copy is 10 % slower; patches cost 1 % in either."""

    def run(seconds):
        return engine.Run(seconds, seconds, seconds, 0)

    found = [engine.Round(run(1.1), run(1.01), 0)] * 3 + [engine.Round(run(1.0), run(1.111), 1)] * 9
    turns = engine.speeds(found, "decode")
    assert engine.ratio(turns) == pytest.approx(1 / 1.01)
    assert engine.first_over_second(turns) == pytest.approx(1.1)
