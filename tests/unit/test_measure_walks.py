"""The evidence of random walks, and its table."""

from __future__ import annotations

import json

import measure_walks
import pytest

from mlx_patches.lab.runner import Row


def row(family, verdict, detail, environment="mlx 0.32.4, mlx-lm 0.32.2", patched=True):
    return Row(environment, f"mlx-lm:{family}", patched, "walks", verdict, detail)


def test_the_table_counts_families_walks_and_sequences(monkeypatch, tmp_path):
    rows = [
        row("a", "red", "1 of 3 walks: row 1: 2 tokens, not 3"),
        row("b", "green", "20 walks, 201 sequences"),
        row("c", "red", "2 of 5 walks: x"),
        row("d", "not-built", "no decoder"),
        row("a", "green", "30 walks, 300 sequences"),
    ]
    monkeypatch.setattr(measure_walks, "EVIDENCE", tmp_path)
    found = measure_walks.kept("mlx-lm 0.32.2", rows)
    (tmp_path / "mlx-lm-0.32.2.json").write_text(json.dumps(found))
    assert measure_walks.table()[2:] == ["|mlx-lm 0.32.2|3|50|501|`c`|"]


@pytest.mark.parametrize(
    "other", [{"environment": "mlx 0.32.4, mlx-lm 0.31.3"}, {"patched": False}]
)
def test_rows_of_other_walks_are_refused(other):
    with pytest.raises(SystemExit, match=r"no walks with the patches on mlx-lm 0\.32\.2: mlx 0\."):
        measure_walks.kept("mlx-lm 0.32.2", [row("a", "green", "1 walks, 2 sequences", **other)])


@pytest.mark.parametrize(
    "name, text, said",
    [
        ("mlx-lm 9.9.9", "", "no release set 'mlx-lm 9.9.9': see tools/release_sets.toml"),
        ("mlx-lm 0.32.2", "{}\n", "rows.jsonl: line 1: not a row that the lab wrote"),
        ("mlx-lm 0.32.2", None, "rows.jsonl: no such file"),
    ],
)
def test_bad_input_gets_one_line(monkeypatch, tmp_path, name, text, said):
    monkeypatch.setattr(measure_walks, "EVIDENCE", tmp_path / "evidence")
    file = tmp_path / "rows.jsonl"
    if text is not None:
        file.write_text(text)
    monkeypatch.setattr("sys.argv", ["measure_walks", "--set", name, "--rows", str(file)])
    with pytest.raises(SystemExit) as raised:
        measure_walks.main()
    assert said in str(raised.value) and "\n" not in str(raised.value)
    assert not (tmp_path / "evidence").exists()
