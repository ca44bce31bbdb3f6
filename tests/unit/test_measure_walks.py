import json

import measure_walks
import pytest

from mlx_patches.lab.runner import Row


def row(family, verdict, detail, environment="mlx 0.32.4, mlx-lm 0.32.2", patched=True):
    return Row(environment, f"mlx-lm:{family}", patched, "walks", verdict, detail)


def test_table_counts(monkeypatch, tmp_path):
    rows = [
        row("a", "red", "1 of 3 walks: row 1: 2 tokens, not 3"),
        row("b", "green", "20 walks, 201 sequences"),
        row("c", "red", "2 of 5 walks: x"),
        row("d", "not-built", "no decoder"),
        row("a", "green", "30 walks, 300 sequences"),
    ]
    monkeypatch.setattr(measure_walks, "EVIDENCE", tmp_path)
    found = measure_walks.build_evidence("mlx-lm 0.32.2", rows)
    (tmp_path / "mlx-lm-0.32.2.json").write_text(json.dumps(found))
    assert measure_walks.table()[2:] == ["|mlx-lm 0.32.2|3|50|501|`c`|"]


def test_red_walk_stays_red():
    rows = [row("a", "green", "2 walks, 20 sequences"), row("b", "red", "1 of 3 walks: x")]
    once = measure_walks.build_evidence(
        "mlx-lm 0.32.2", [*rows, row("c", "green", "1 walks, 9 sequences")]
    )
    more = [row("a", "green", "3 walks, 30 sequences"), row("c", "red", "1 of 9 walks: y")]
    more += [more[0], row("b", "green", "1 walks, 9 sequences")]
    found = measure_walks.build_evidence("mlx-lm 0.32.2", more, once, more=True)["families"]
    assert found["mlx-lm:a"] == {"verdict": "green", "walks": 8, "sequences": 80}
    assert [found[f"mlx-lm:{name}"]["verdict"] for name in "bc"] == ["red", "red"]
    again = measure_walks.build_evidence("mlx-lm 0.32.2", more[-1:], once)["families"]
    assert again == once["families"] | {
        "mlx-lm:b": {"verdict": "green", "walks": 1, "sequences": 9}
    }


def test_other_releases_are_not_added():
    once = measure_walks.build_evidence(
        "mlx-lm 0.32.2", [row("a", "green", "2 walks, 20 sequences")]
    )
    other = row("b", "green", "2 walks, 20 sequences", environment="mlx 0.33.0, mlx-lm 0.32.2")
    with pytest.raises(SystemExit, match=r"are of mlx 0\.32\.4, mlx-lm 0\.32\.2, not mlx 0\.33\.0"):
        measure_walks.build_evidence("mlx-lm 0.32.2", [other], once)


@pytest.mark.parametrize(
    "other", [{"environment": "mlx 0.32.4, mlx-lm 0.31.3"}, {"patched": False}]
)
def test_other_rows_are_refused(other):
    with pytest.raises(SystemExit, match=r"no walks with the patches on mlx-lm 0\.32\.2: mlx 0\."):
        measure_walks.build_evidence(
            "mlx-lm 0.32.2", [row("a", "green", "1 walks, 2 sequences", **other)]
        )
