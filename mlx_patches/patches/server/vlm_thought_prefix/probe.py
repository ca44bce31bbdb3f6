"""Splits answers whose reasoning begins with letters of the word "thought"."""

from __future__ import annotations

import importlib

from ....core.patch import Target
from ....probes import NotApplicable, Result

_THOUGHTS = ("got it, it is 42", "the user asks", "hoping so", "though small", "42 it is")
_OPENINGS = ("", "<|channel>thought\n", "thought\n", "<|channel>thought")


def probe(target: Target) -> Result:
    """Red where the split changes the reasoning or the content."""
    module = importlib.import_module(target.module)
    split = getattr(module, "_split_thinking", None)
    if split is None or not hasattr(module, target.name):
        raise NotApplicable("this release does not split reasoning here")
    for opening in _OPENINGS:
        for thought in _THOUGHTS:
            reasoning, content = split(f"{opening}{thought}<channel|>Yes.")
            if (reasoning, content) != (thought, "Yes."):
                return Result(True, f"{thought!r} is returned as {reasoning!r}")
    return Result(False, "reasoning is returned unchanged")
