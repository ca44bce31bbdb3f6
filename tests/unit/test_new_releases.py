"""New releases on the package index become new release sets."""

from __future__ import annotations

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
