"""Splits answers whose reasoning begins with letters of the word "thought"."""

from ....probes.kit import Result, Target, module_with

_THOUGHTS = ("got it, it is 42", "the user asks", "hoping so", "though small", "42 it is")
_OPENINGS = ("", "<|channel>thought\n", "thought\n", "<|channel>thought")


def probe(target: Target) -> Result:
    """Red if the split changes the reasoning or the content."""
    split = module_with(target)._split_thinking
    for opening in _OPENINGS:
        for thought in _THOUGHTS:
            reasoning, content = split(f"{opening}{thought}<channel|>Yes.")
            if (reasoning, content) != (thought, "Yes."):
                return Result(True, f"{thought!r} is returned as {reasoning!r}")
    return Result(False, "reasoning is returned unchanged")
