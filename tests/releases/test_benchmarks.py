"""The benchmark of the engines: its runs, its output, and models that are not tiny."""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import mlx_patches
from mlx_patches import status
from mlx_patches.core.packages import MODELS
from mlx_patches.lab import build as lab_build
from mlx_patches.lab.shrink import grow_config

pytestmark = pytest.mark.slow

OURS = Path(mlx_patches.__file__).parent
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def engine():
    with pytest.MonkeyPatch.context() as context:
        context.syspath_prepend(ROOT)
        yield importlib.import_module("benchmarks.engine")


# ``copies`` is a part of ``engine``.
BENCHMARKS = sorted({file.stem for file in (ROOT / "benchmarks").glob("*.py")} - {"copies"})


@pytest.mark.parametrize("name", BENCHMARKS)
def test_the_command_of_its_docstring_starts(name):
    docstring = ast.get_docstring(ast.parse((ROOT / "benchmarks" / f"{name}.py").read_text()))
    command = re.search(r"^    python ([-./\w ]+?)(?: \[|$)", docstring, re.MULTILINE)
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, *command[1].split(), "--help"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: ")


def test_one_copy_of_two_has_the_patches(engine):
    from mlx.utils import tree_flatten

    (family,) = engine.installed("llama")
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
                paths = {outcome.target for outcome in status().applied}
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
    """The modules of the releases that are imported now."""
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


def test_a_line_of_the_table(engine):
    for name in ("llama", "qwen2_5_vl"):
        for family in engine.installed(name):
            two = engine.sides(family, engine.SHAPES["tiny"])
            prompts = engine.texts(2, 8, False, two[0].model.vocabulary)
            assert [len(prompt) for prompt in prompts] == [8, 6]
            found = engine.rounds(two, prompts, 2, (8, 60.0), "wall")
            if any(one.patched is None for one in found):
                pytest.skip("the release's engine does not take these prompts")
            assert len(found) == 8
            assert len(engine.rounds(two, prompts, 2, (40, 0.0), "wall")) == engine.TURNS
            cells = engine.line(family, 2, "unequal", found, 2).strip("| ").split(" | ")
            assert cells[:3] == [str(family), "2", "unequal"]
            assert len(cells) == 10
    heads = engine.heading("tiny", engine.SHAPES["tiny"], 2, "wall").splitlines()
    assert heads[-2].count("|") == heads[-1].count("|") == 11


def test_an_interval_holds_the_ratio(engine):
    values = [[0.9, 1.0, 1.02, 1.05, 1.3], [0.8, 0.9]]
    low, high = engine.interval(values)
    assert low <= engine.ratio(values) <= high
    assert engine.interval(values) == (low, high)
    assert engine.interval([[1.0] * 5]) == (1.0, 1.0)


def test_a_copy_that_is_slow_throughout_does_not_count(engine):
    """The second copy is 10 % slower; patches cost 1 % in either."""

    def run(seconds):
        return engine.Run(seconds, seconds, seconds, 0)

    found = [engine.Round(run(1.1), run(1.01), 0)] * 3 + [engine.Round(run(1.0), run(1.111), 1)] * 9
    turns = engine.speeds(found, "decode")
    assert engine.ratio(turns) == pytest.approx(1 / 1.01)
    assert engine.first_over_second(turns) == pytest.approx(1.1)


def test_models_of_a_billion_parameters(engine, monkeypatch):
    """The models are built without drawing weights, so no memory is allocated."""
    from mlx.utils import tree_flatten

    monkeypatch.setattr(lab_build, "draw_weights", lambda model, seed: None)
    shape = engine.SHAPES["1b"]
    for name in engine.FAMILIES:
        for family in engine.installed(name):
            sizes = {**shape.sizes, **shape.own.get(name, {})}
            model = lab_build.build(family, sizes=sizes).module
            count = sum(value.size for _, value in tree_flatten(model.parameters()))
            assert 2e8 < count < 2e9, family


def test_a_config_grows():
    small = {"num_hidden_layers": 4, "kinds": ["a", "b", "a", "c"], "rope": {"sections": [1]}}
    grown = grow_config(small, {"num_hidden_layers": 6, "sections": [2]})
    assert grown["kinds"] == ["a", "b", "a", "c", "a", "b"]
    assert grown["rope"] == {"sections": [2]}
    assert grow_config(small, {}) == small
