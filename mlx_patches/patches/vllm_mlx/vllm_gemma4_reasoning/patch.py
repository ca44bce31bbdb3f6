"""vllm-mlx returns Gemma 4's reasoning as part of the answer.

Why: Gemma 4 writes its thoughts between ``<|channel>thought`` and ``<channel|>``, or up to
    ``<|channel>response``. Up to 0.2.7 ``--reasoning-parser`` offers no parser for this format.
    Optional: the patch adds a parser that the user has to select by name.
How: A parser ``gemma4`` parses the text so far, and streams what it adds to the previous result.
Upstream: vllm-mlx 0.2.8 has a parser of this name.
Retire when: vllm-mlx below 0.2.8 is no longer supported.
"""

import importlib
from functools import cache
from typing import Any

from ....core.verbs import Patch, result, wrap

NAME = "gemma4"
START, END = "<|channel>", "<channel|>"
THOUGHT, RESPONSE = "thought", "response"


def split_channels(text: str) -> tuple[str, str]:
    """(reasoning, content) of an answer so far; more text only appends to either."""
    outside, *channels = text.split(START)
    reasoning, content = [], [outside.replace(END, "")]
    for channel in channels:
        name = next((n for n in (THOUGHT, RESPONSE) if channel.startswith(n)), "")
        if not name and any(n.startswith(channel) for n in (THOUGHT, RESPONSE)):
            continue  # its name is not complete
        inside, _, after = channel.removeprefix(name).removeprefix("\n").partition(END)
        if name == RESPONSE:
            content += inside, after
        else:
            reasoning.append(inside)
            content.append(after)
    return "".join(reasoning), "".join(content)


def parse_answer(text: str) -> tuple[str | None, str | None]:
    """(reasoning, content) of a complete answer; None for an empty part."""
    opened, closed = text.find(START), text.find(END)
    if closed >= 0 and not 0 <= opened < closed:  # the prompt opened the channel
        text = START + text
    reasoning, content = split_channels(text)
    return reasoning.strip() or None, content.strip() or None


@cache
def make_parser() -> type:
    """The parser class, derived from the host's base class."""
    base = importlib.import_module("vllm_mlx.reasoning.base")

    class Gemma4ChannelParser(base.ReasoningParser):  # type: ignore[misc, name-defined]
        def extract_reasoning(self, model_output: str) -> tuple[str | None, str | None]:
            return parse_answer(model_output)

        def extract_reasoning_streaming(
            self, previous_text: str, current_text: str, delta_text: str
        ) -> Any:
            """What the newest text adds to reasoning and content; None if nothing."""
            before, now = split_channels(previous_text), split_channels(current_text)
            reasoning, content = (
                new[len(old) :] or None for old, new in zip(before, now, strict=True)
            )
            if reasoning is None and content is None:
                return None
            return base.DeltaMessage(reasoning=reasoning, content=content)

    return Gemma4ChannelParser


def find_parser(get: Any, name: str) -> Any:
    try:
        return get(name)
    except KeyError:
        if name != NAME:
            raise
        return make_parser()


def add_name(names: list[str]) -> list[str]:
    return list(dict.fromkeys([*names, NAME]))


_REGISTRY = ("_register_builtin_parsers",)

PATCH = Patch(
    id="vllm-gemma4-reasoning",
    severity="feature",
    targets=(
        *wrap("vllm_mlx.reasoning:get_parser", find_parser, fingerprint_of=_REGISTRY),
        *result("vllm_mlx.reasoning:list_parsers", add_name, fingerprint_of=_REGISTRY),
    ),
    optional=True,
)
