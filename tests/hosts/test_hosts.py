"""Every concurrent or repeated answer of a real host is the one that it gives alone.

Runs in the environment of a release set, whose name is in MLX_PATCHES_HOST_SET: `make hosts`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from . import server
from .server import prompts, serving, with_images

ROOT = Path(__file__).parents[2]
CASES = tomllib.loads(Path(__file__).with_name("cases.toml").read_text())
SET = os.environ.get("MLX_PATCHES_HOST_SET", "")
COUNT = 16
# Long enough for the prefix caches that leave short prompts alone.
PREFIX = 120

if not SET:
    pytest.skip("needs the environment of a host: make hosts", allow_module_level=True)


def name_of(case):
    words = (case["family"], case.get("name"), "images" if case.get("images") else None)
    return "-".join(filter(None, words))


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Saves a case's tiny model, once."""
    made = {}

    def of(case):
        kind = (case["family"], case.get("package", "mlx-lm"))
        if kind not in made:
            made[kind] = tmp_path_factory.mktemp(case["family"])
            command = [sys.executable, "-m", "tests.hosts.model", str(made[kind]), *kind]
            subprocess.run(command, cwd=ROOT, check=True)
        return made[kind]

    return of


def parameter(case):
    """A case as pytest takes it."""
    marks = [pytest.mark.slow] if case.get("slow") else []
    return pytest.param(case, id=name_of(case), marks=marks)


def asked_of(case):
    """The prompts that a case's host is asked; half of them begin alike."""
    asked = prompts(COUNT // 2) + prompts(COUNT // 2, seed=1, prefix=PREFIX)
    return with_images(asked) if case.get("images") else asked


def differing(before, after):
    """The answers that differ: the index of the prompt, the one answer, the other."""
    pairs = enumerate(zip(before, after, strict=True))
    return [(index, *pair) for index, pair in pairs if pair[0] != pair[1]]


def answers(case, model, log, patched):
    """What the host says alone, together, and asked again."""
    asked = asked_of(case)
    with serving(case, model, log, patched) as host:
        # Where another server gives the reference, this one may die of its defect.
        right = patched or not ("alone" in case["wrong"] or "reference" in case)
        alone = host.alone(asked) if right else host.one_by_one(asked)
        again = host.repeated(asked)
        together = host.together(asked)
        return {"alone": alone, "together": together, "repeated": again}


@pytest.mark.parametrize("case", list(map(parameter, CASES[SET])))
def test_answers_are_those_of_a_request_alone(case, models, tmp_path):
    model = models(case)
    without = answers(case, model, tmp_path / "without.log", patched=False)
    with_ = answers(case, model, tmp_path / "with.log", patched=True)
    released = without["alone"]
    if "reference" in case:
        plain = case | {"command": f"{case['command']} {case['reference']}"}
        with serving(plain, model, tmp_path / "reference.log", patched=False) as host:
            released = host.alone(asked_of(case))
    wrong = [name for name, said in without.items() if said != released]
    changed = differing(released, with_["alone"])
    if changed:
        wrong.append("alone")
    assert set(case["wrong"]) <= set(wrong), "the defect does not show without the patches"
    assert "alone" in case["wrong"] or not changed, f"a right answer has changed: {changed}"
    for name in ("together", "repeated"):
        assert not (unlike := differing(with_["alone"], with_[name])), f"{name}: {unlike}"


@pytest.mark.parametrize("patched", [False, True], ids=["without", "with"])
@pytest.mark.parametrize(
    "case", [c for c in CASES[SET] if c.get("whole")], ids=lambda case: case["family"]
)
def test_outlives_a_prompt_that_leaves_nothing_to_feed(
    case, patched, models, tmp_path, monkeypatch
):
    """A text and its answer, which are cached, asked as one prompt; and no text at all."""
    monkeypatch.setattr(server, "ANSWER_SECONDS", 10)
    asked = prompts(1)[0]
    log = tmp_path / "log"
    with serving(case, models(case), log, patched) as host:
        said = host.answer(asked)
        on, once_more = (host.answer(text) for text in (asked + said, (asked + said)[:-1]))
        empty = host.answer("")
        assert (host.answer(asked) == said) == patched, "the server is dead, or was never hit"
    if patched:
        assert once_more == (said[-1] + on)[: len(once_more)]
        assert not empty.startswith("<"), empty
