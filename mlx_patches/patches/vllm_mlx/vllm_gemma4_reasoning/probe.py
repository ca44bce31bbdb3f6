"""Parses an answer with vllm-mlx's Gemma 4 reasoning parser."""

from ....probes.kit import Result, Target, require_module

NAME = "gemma4"
ANSWER = "<|channel>thought\nSix times seven.\n<channel|>It is 42."
MEANT = ("Six times seven.", "It is 42.")


def probe(target: Target) -> Result:
    """Red if the parser is missing, or does not separate the reasoning from the answer."""
    reasoning = require_module(target.module)
    if NAME not in reasoning.list_parsers():
        return Result(True, f"the parsers are {', '.join(reasoning.list_parsers())}")
    got = reasoning.get_parser(NAME)().extract_reasoning(ANSWER)
    return Result(tuple(got) != MEANT, f"reasoning and content are {got}")
