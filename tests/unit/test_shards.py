"""The option --shard of the measuring tools."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import shards

TOOLS = Path(shards.__file__).parent


def test_the_shards_of_a_list_are_disjoint_and_are_all_of_it():
    items = list("abcdefgh")
    found = [shards.parse(f"{index}/3").of(items) for index in (1, 2, 3)]
    assert found == [["a", "d", "g"], ["b", "e", "h"], ["c", "f"]]
    assert shards.Shard().of(items) == items


@pytest.mark.parametrize("text", ["x", "1", "", "0/0", "0/2", "5/2", "a/b", "-1/2", "1/2/3", "1/²"])
def test_a_bad_shard_is_refused_in_one_line(text):
    with pytest.raises(SystemExit) as refused:
        shards.parse(text)
    line = f"--shard {text!r}: not I/N with I from 1 to N, such as --shard 1/8"
    assert refused.value.code == line


@pytest.mark.parametrize("tool", ["measure_matrix", "measure_lab", "measure_alone"])
def test_each_tool_refuses_a_bad_shard_before_it_measures(tool):
    command = [sys.executable, str(TOOLS / f"{tool}.py"), "--shard", "5/2"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "--shard '5/2': not I/N with I from 1 to N, such as --shard 1/8\n"
