"""Splits answers whose reasoning begins with letters of the word "thought", and streams one."""

from types import SimpleNamespace

from ....probes.kit import Result, Target, module_with, require_own
from ....probes.vlm_server import make_silent_generator

_THOUGHTS = ("got it, it is 42", "the user asks", "hoping so", "though small", "42 it is")


def probe(target: Target) -> Result:
    """Red if the split changes the reasoning or the content."""
    if target.module == "mlx_vlm.server":
        return probe_stream(target)
    split = module_with(target)._split_thinking
    for opening in ("", "<|channel>thought\n", "thought\n", "<|channel>thought"):
        for thought in _THOUGHTS:
            reasoning, content = split(f"{opening}{thought}<channel|>Yes.")
            if (reasoning, content) != (thought, "Yes."):
                return Result(True, f"{thought!r} is returned as {reasoning!r}")
    return Result(False, "reasoning is returned unchanged")


def probe_stream(target: Target) -> Result:
    """Red if a marker of a thought arrives together with a part of the thought."""
    require_own(target)
    generator = make_silent_generator(["<think>", "so", " it is</think>", " 42"])
    arguments = SimpleNamespace(streamed=True, max_tokens=9, logits_processors=None)
    texts = [token.text for token in generator.generate("hi", args=arguments)[1]]
    return Result("</think>" not in texts, f"streamed as {texts}")
