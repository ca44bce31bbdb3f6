"""`make real` without MLX: its judge, evidence and table."""

from pathlib import Path

import pytest
import real
import real_judge
from real_judge import FLIP, FLOAT32, LEADS, SAME, WRONG

ROOT = Path(__file__).parents[2]
EVIDENCE = real_judge.load()
WORDS = ["", "Paris", " is", " big", "."]
END = 0


def step(*top, scale=10.0):
    return {"top": [list(pair) for pair in top], "scale": scale}


# Alone: "Paris is big", and nearly "Paris is.".
ALONE = [
    step((1, 9.0), (2, 5.0)),
    step((2, 8.0), (3, 1.0)),
    step((3, 7.0), (4, 6.9999)),
    step((END, 6.0), (4, 2.0)),
]
MOST = LEADS[FLOAT32]


def decode(tokens):
    return "".join(WORDS[token] for token in tokens)


@pytest.mark.parametrize(
    ("said", "word"),
    [
        ([1, 2, 3, 0], SAME),
        ([1, 2, 4, 4], FLIP),  # after it the text goes another way
        ([2, 2, 3, 0], WRONG),
        ([1, 3, 3, 0], WRONG),
        ([1, 2, 1, 0], WRONG),  # not among the likeliest, however near those are
        ([1, 2, 3], WRONG),
        ([], WRONG),
    ],
)
def test_near_and_wrong_tokens(said, word):
    assert real_judge.judge(said, ALONE, MOST).word == word


def test_lead_decides():
    verdict = real_judge.judge([1, 2, 4, 4], ALONE, MOST)
    assert verdict.lead == pytest.approx(1e-5)
    assert real_judge.judge([1, 2, 4, 4], ALONE, verdict.lead / 2).word == WRONG


@pytest.mark.parametrize(
    ("said", "word"),
    [
        ("Paris is big", SAME),
        ("Paris is. Paris", FLIP),
        ("Paris is", WRONG),
        ("Paris", WRONG),
        (" is big", WRONG),
        ("", WRONG),
        ("Paris is bigbig", WRONG),
    ],
)
def test_text_is_judged_like_tokens(said, word):
    assert real_judge.judge_text(said, ALONE, MOST, decode, END).word == word


def test_lead_is_relative():
    assert real_judge.lead_over(2, ALONE[0]) == pytest.approx(0.4)


class Child(real.Asked):
    """Weights whose child process prints what ``answer`` returns for a task."""

    tokenizer = type("Tokenizer", (), {"decode": staticmethod(decode)})

    def __init__(self, answer):
        super().__init__(None, real.SMOLLM2, Path())
        object.__setattr__(self, "run", answer)


PROMPT = {"text": "Where?", "alone": ALONE, "penalized": [], "penalty": False, "long": False}
TASK = {"do": "ask", "kind": FLOAT32, "families": ["llama"], "scenarios": ["joining"]}
TASK |= {"prompts": [{**PROMPT, "count": 3}]}


def said(scenario="joining", **more):
    return {"family": "llama", "scenario": scenario, **more}


def rows_of(without, with_):
    def answer(task):
        return [said("", apart=0.0), with_ if task["patched"] else without], ""

    return Child(answer).rows(TASK, {})


def test_wrong_answer_is_counted():
    (row,) = rows_of(said(said=[[1, 3, 3]]), said(said=[[1, 2, 3]]))
    assert row["without"] == {SAME: 0, FLIP: 0, WRONG: 1}
    assert row["with"] == {SAME: 1, FLIP: 0, WRONG: 0}
    assert row["texts"] == {"without": ["Where?", "Paris is big", "Paris big big"]}


def test_failing_scenario_is_all_wrong():
    (row,) = rows_of(said(error="IndexError: ..."), said(**{"n/a": "no penalty"}))
    assert row["without"] == {SAME: 0, FLIP: 0, WRONG: 1, "error": "IndexError: ..."}
    assert row["with"] == {"n/a": "no penalty"}


def test_different_arithmetic_is_named():
    unlike = {}
    assert Child(lambda task: ([said("", apart=0.3)], "")).rows(TASK, unlike) == []
    assert unlike == {"SmolLM2 135M as llama": 0.3}


def test_every_part_was_measured():
    assert EVIDENCE.keys() <= {*real_judge.SETS}
    for name, one in EVIDENCE.items():
        for part in one["seconds"]:
            weights, kind = part.split(", ")
            rows = [r for r in one["rows"] if (r["weights"], r["kind"]) == (weights, kind)]
            asked = {"alone", "joining", "together", "penalty"} if kind == FLOAT32 else {"joining"}
            assert asked <= {r["scenario"] for r in rows}, (name, part)
        for row in one["rows"]:
            assert f"{row['weights']}, {row['kind']}" in one["seconds"], (name, row)


def test_no_wrong_answer_with_patches():
    wrong = [real.line(r) for one in EVIDENCE.values() for r in one["rows"] if r["with"].get(WRONG)]
    assert wrong == []


def test_evidence_is_sensitive():
    rows = EVIDENCE["mlx-lm 0.31.3"]["rows"]
    dies = [r["without"] for r in rows if r["scenario"] == "penalty" and "error" in r["without"]]
    assert len(dies) > 5
    assert all("'NoneType' object is not iterable" in one["error"] for one in dies)


def test_findings_show_evidence():
    page = (ROOT / "docs" / "findings.md").read_text()
    assert "\n".join(real_judge.page(EVIDENCE)) in page


def row_of(kind, family, scenario="joining", **more):
    row = {"weights": "SmolLM2 135M", "kind": kind, "family": family, "scenario": scenario}
    return {**row, **more}


def test_part_replaces_only_its_rows():
    evidence = {"rows": [], "seconds": {}, "unlike": {}}
    rows = [row_of("bfloat16", "llama"), row_of(FLOAT32, "a"), row_of(FLOAT32, "llama")]
    for row in (*rows, row_of(FLOAT32, "a", new=True)):
        real.add(evidence, real.Part("SmolLM2 135M, float32", [row], {}, 5))
    found = [row_of(FLOAT32, "a", new=True), row_of(FLOAT32, "llama"), row_of("bfloat16", "llama")]
    assert evidence["rows"] == found
    assert evidence["seconds"] == {"SmolLM2 135M, float32": 20}
