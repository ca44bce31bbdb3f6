"""New releases on the package index become new release sets."""

from __future__ import annotations

import json
import tomllib

import new_releases
from release_sets import ReleaseSet

SETS = {
    name: ReleaseSet(name, "2026-01-01", {})
    for name in ("mlx-lm 0.9", "mlx-lm 0.10", "mlx-vlm 0.7", "vllm-mlx 0.6.0")
}
SEEN = {"mlx": "0.32.4"}
INDEX = {
    "mlx-lm": ["0.9", "0.10"],
    "mlx-vlm": ["0.6", "0.7"],
    "mlx": ["0.32.4"],
    "vllm-mlx": ["0.6.0"],
}


def news(**released):
    return new_releases.news(SETS, SEEN, lambda name: (INDEX | released)[name])


def test_nothing_new():
    assert news() == ([], [], {})


def test_a_new_release_of_a_package_is_a_new_set():
    index = {"mlx-vlm": ["0.6", "0.6.1", "0.7", "0.7.1", "0.8"]}
    assert news(**index) == (["mlx-vlm 0.7.1", "mlx-vlm 0.8"], [], {})


def test_a_new_mlx_has_the_newest_sets_measured_again():
    added, again, newer = news(mlx=["0.32.4", "0.33.0"])
    assert (added, again, newer) == (
        [],
        ["mlx-lm 0.10", "mlx-vlm 0.7", "vllm-mlx 0.6.0"],
        {"mlx": "0.33.0"},
    )


def test_a_new_release_of_a_host_is_a_new_set():
    assert news(**{"vllm-mlx": ["0.6.0", "0.7.0"]}) == (["vllm-mlx 0.7.0"], [], {})


def test_the_file_of_sets_keeps_what_it_has():
    text = '# why\n\n["mlx-lm 0.10"]\ndate = 2026-01-01\npins = { mlx = "0.1" }\n'
    text = new_releases.with_sets(text, ["mlx-lm 0.11"], ["mlx-lm 0.10"], "2026-02-02")
    loaded = tomllib.loads(text)
    assert str(loaded["mlx-lm 0.10"]["date"]) == "2026-02-02"
    assert loaded["mlx-lm 0.10"]["pins"] == {"mlx": "0.1"}
    assert str(loaded["mlx-lm 0.11"]["date"]) == "2026-02-02"
    assert text.startswith("# why\n")


def cell(without="green", with_="green", body="a"):
    return {"m:f": {"body": body, "without": without, "with": with_, "detail": ""}}


def lab(name, **families):
    letters = {family: {"merge": letter} for family, letter in families.items()}
    return {"set": name, "without": letters}


def summary(patches, *evidence, known=("mlx-lm 0.1",)):
    probed = [
        {"set": f"mlx-lm 0.{number}", "patches": one} for number, one in enumerate(patches, 1)
    ]
    return "\n".join(new_releases.summary(probed, evidence, known)).strip().splitlines()


def test_the_summary_says_what_turned_red_and_green_and_has_other_code():
    before = {
        "fixed": cell("red"),
        "broken": cell(),
        "same": cell("red"),
        "moved": cell("red"),
        "gone": cell("red"),
    }
    now = {
        "fixed": cell(body="b"),
        "broken": cell("red"),
        "same": cell("red"),
        "moved": cell("red", "red", "c"),
        "gone": {},
    }
    labs = (lab("mlx-lm 0.1", a="g", b="r"), lab("mlx-lm 0.2", a="r", b="r", c="g"))
    assert summary([before, now], *labs) == [
        "### mlx-lm 0.2, against mlx-lm 0.1",
        "",
        "- green to red: broken",
        "- not repaired by its patch: moved",
        "- other code: fixed, moved",
        "- red to green: fixed",
        "- red to no code: gone",
        "- families, green to red: a",
        "- families, new to green: c",
    ]


def test_the_summary_of_a_release_with_the_same_results_says_that():
    same = {"p": cell("red")}
    labs = (lab("mlx-lm 0.1", a="g"), lab("mlx-lm 0.2", a="g"))
    assert summary([same, same], *labs)[-1] == "- no result changed"
    assert summary([same, same], *labs, known=("mlx-lm 0.1", "mlx-lm 0.2")) == []


def test_the_sets_to_measure_are_told_to_the_workflow(tmp_path, monkeypatch):
    for name in ("SETS", "WATCHED"):
        file = tmp_path / name
        file.write_text(getattr(new_releases, name).read_text())
        monkeypatch.setattr(new_releases, name, file)
    index = {**INDEX, "mlx-lm": ["0.9", "99.0"]}
    monkeypatch.setattr(new_releases, "released", lambda name: index.get(name, ["0.0.1"]))
    monkeypatch.setattr(new_releases.sys, "argv", ["new_releases.py"])
    monkeypatch.setenv("GITHUB_OUTPUT", str(tmp_path / "output"))
    new_releases.main()
    name, _, told = (tmp_path / "output").read_text().partition("=")
    assert (name, json.loads(told)) == ("sets", ["mlx-lm 99.0"])
