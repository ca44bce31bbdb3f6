"""`make real` without MLX: its judge and evidence."""

from pathlib import Path

import pytest
import real
import real_judge
from real_judge import FLIP, FLOAT32, LEADS, SAME, WRONG

ROOT = Path(__file__).parents[2]
EVIDENCE = real_judge.load()
END = 0


def step(*top, scale=10.0):
    return {"top": [list(pair) for pair in top], "scale": scale}


SOLO = [
    step((1, 9.0), (2, 5.0)),
    step((2, 8.0), (3, 1.0)),
    step((3, 7.0), (4, 6.9999)),
    step((END, 6.0), (4, 2.0)),
]
MOST = LEADS[FLOAT32]


@pytest.mark.parametrize(
    ("tokens", "word"),
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
def test_near_and_wrong_tokens(tokens, word):
    assert real_judge.judge(tokens, SOLO, MOST).word == word


def test_lead_decides():
    verdict = real_judge.judge([1, 2, 4, 4], SOLO, MOST)
    assert verdict.lead == pytest.approx(1e-5)
    assert real_judge.judge([1, 2, 4, 4], SOLO, verdict.lead / 2).word == WRONG


def test_every_part_was_measured():
    assert EVIDENCE.keys() <= {*real_judge.SETS}
    for name, one in EVIDENCE.items():
        for part in one["seconds"]:
            weights, kind = part.split(", ")
            rows = [r for r in one["rows"] if (r["weights"], r["kind"]) == (weights, kind)]
            names = {"alone", "joining", "together", "penalty"} if kind == FLOAT32 else {"joining"}
            assert names <= {r["scenario"] for r in rows}, (name, part)
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
