"""Formats malformed tool calls with the server, next to a valid one."""

import json
from typing import Any

from ....probes.kit import Result, Target, class_of

RIGHT = {"name": "f", "arguments": {"a": 1}}


def _fail(text: str) -> Any:
    raise AttributeError("'NoneType' object has no attribute 'group'")


# What parsers do with a malformed call.
WRONG = {
    "raises AttributeError": _fail,
    "returns no arguments": lambda text: {"name": "f"},
    "returns None": lambda text: None,
    "returns a text": lambda text: text,
    "returns a set": lambda text: {"name": "f", "arguments": {"a": {1}}},
}


def probe(target: Target) -> Result:
    """Red if the formatter raises, or loses the valid call."""
    formatter = class_of(target)
    for what, wrong in WRONG.items():

        def parse(text: str, tools: Any, wrong: Any = wrong) -> Any:
            return dict(RIGHT) if text == "right" else wrong(text)

        try:
            calls = formatter(parse, None)(["right", "wrong"])
        except Exception as error:
            return Result(True, f"a parser that {what} ends the answer: {error!r}")
        first = calls[0]["function"]
        if {**first, "arguments": json.loads(first["arguments"])} != RIGHT:
            return Result(True, f"next to a parser that {what}, a valid call becomes {first}")
    return Result(False, "malformed calls are dropped")
