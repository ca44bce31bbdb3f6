"""Concurrent and repeated answers of a real host equal its answers to single requests.

Runs in the environment of a release set, whose name is in MLX_PATCHES_HOST_SET: `make hosts`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from . import server
from .server import FAILED, processors_of, prompts, serving, with_images, with_shapes

ROOT = Path(__file__).parents[2]
CASES = tomllib.loads(Path(__file__).with_name("cases.toml").read_text())
SET = os.environ.get("MLX_PATCHES_HOST_SET", "")
COUNT = 16
# Words in the common prefix: long enough for prefix caches that ignore short prompts.
PREFIX = 120

if not SET:
    pytest.skip("needs the environment of a host: make hosts", allow_module_level=True)


def name_of(case):
    images = {None: None, True: "images"}.get(case.get("images"), case.get("images"))
    processors = "processors" if "processors" in case else None
    words = (case["family"], case.get("name"), images, processors)
    return "-".join(filter(None, words))


@pytest.fixture(scope="module")
def models(tmp_path_factory):
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
    marks = [pytest.mark.slow] if case.get("slow") else []
    return pytest.param(case, id=name_of(case), marks=marks)


def build_prompts(case):
    """The prompts for a case's host; half of them have a common beginning."""
    sent = prompts(COUNT // 2) + prompts(COUNT // 2, seed=1, prefix=PREFIX)
    if case.get("images"):
        return with_shapes(sent) if case["images"] == "shapes" else with_images(sent)
    return sent


def differing(before, after):
    pairs = enumerate(zip(before, after, strict=True))
    return [(index, *pair) for index, pair in pairs if pair[0] != pair[1]]


def has_reference(case):
    """Whether the right answers are known without the host."""
    return "reference" in case or "processors" in case


def exact_answers(case, model):
    """The model's answer to each request, computed without the host."""
    pairs = [
        [prompt, processors_of(case["processors"], index)]
        for index, prompt in enumerate(build_prompts(case))
    ]
    command = [sys.executable, "-m", "tests.hosts.exact", str(model)]
    environment = os.environ | {"MLX_PATCHES": "0"}
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        input=json.dumps(pairs),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def reference(case, model, log):
    """The right answers of a case whose host gets even single requests wrong."""
    if "processors" in case:
        return exact_answers(case, model)
    plain = case | {"command": f"{case['command']} {case['reference']}"}
    with serving(plain, model, log, patched=False) as host:
        return host.answer_solo(build_prompts(case))


def answers(case, model, log, patched):
    sent = build_prompts(case)
    with serving(case, model, log, patched) as host:
        early = host.answer_batch(sent) if case.get("first") == "batch" else None
        # This server may fail if there is another reference: the case shows its defect.
        right = patched or not ("solo" in case["wrong"] or has_reference(case))
        solo = host.answer_solo(sent) if right else host.answer_one_by_one(sent)
        again = host.answer_again(sent)
        batch = early or host.answer_batch(sent)
        return {"solo": solo, "batch": batch, "repeated": again}


@pytest.mark.parametrize("case", list(map(parameter, CASES[SET])))
def test_answers_equal_solo_answers(case, models, tmp_path):
    model = models(case)
    without = answers(case, model, tmp_path / "without.log", patched=False)
    with_ = answers(case, model, tmp_path / "with.log", patched=True)
    known = has_reference(case)
    released = reference(case, model, tmp_path / "reference.log") if known else without["solo"]
    wrong = [name for name, answer in without.items() if answer != released]
    changed = differing(released, with_["solo"])
    if changed and not known:
        wrong.append("solo")
    assert set(case["wrong"]) <= set(wrong), "the defect does not show without the patches"
    may_change = "solo" in case["wrong"] and not known
    assert may_change or not changed, f"a right answer has changed: {changed}"
    for name in ("batch", "repeated"):
        assert not (unlike := differing(with_["solo"], with_[name])), f"{name}: {unlike}"


@pytest.mark.parametrize("patched", [False, True], ids=["without", "with"])
@pytest.mark.parametrize(
    "case", [c for c in CASES[SET] if c.get("whole")], ids=lambda case: case["family"]
)
def test_fully_cached_prompt(case, patched, models, tmp_path, monkeypatch):
    """A cached text with its answer, sent as one prompt; then an empty prompt."""
    sent = prompts(1)[0]
    log = tmp_path / "log"
    with serving(case, models(case), log, patched) as host:
        answer = host.answer(sent)
        if not patched:  # the next answers do not come
            monkeypatch.setattr(server, "ANSWER_SECONDS", 4)
        on, once_more = (host.answer(text) for text in (sent + answer, (sent + answer)[:-1]))
        empty = host.answer("")
        assert (host.answer(sent) == answer) == patched, "the server is dead, or was never hit"
    if patched:
        assert once_more == (answer[-1] + on)[: len(once_more)]
        assert not empty.startswith(FAILED), empty
