"""Asks vllm-mlx for its Gemma 4 reasoning parser, and has it read an answer."""

from __future__ import annotations

import importlib

from ..core.patch import Target
from . import NotApplicable, Result

NAME = "gemma4"
ANSWER = "<|channel>thought\nSix times seven.\n<channel|>It is 42."
MEANT = ("Six times seven.", "It is 42.")


def probe(target: Target) -> Result:
    """Red where there is no such parser, or it does not tell thought from answer."""
    try:
        reasoning = importlib.import_module(target.module)
    except ImportError as error:
        raise NotApplicable(f"this release has no reasoning parsers: {error}") from error
    if NAME not in reasoning.list_parsers():
        return Result(True, f"the parsers are {', '.join(reasoning.list_parsers())}")
    got = reasoning.get_parser(NAME)().extract_reasoning(ANSWER)
    return Result(tuple(got) != MEANT, f"reasoning and content are {got}")
