"""Parses LFM2's and LFM2.5's tool calls with the parser that the release picks."""

import tempfile
from pathlib import Path
from typing import Any

from ....core.distributions import source_file
from ....probes.kit import NotApplicable, Result, Target, module_of


def call(name: str = "look", **arguments: Any) -> dict[str, Any]:
    """A tool call in the server's form."""
    return {"name": name, "arguments": arguments}


CASES: tuple[tuple[str, Any], ...] = (
    ('[look(city="Rome", days=5)]', call(city="Rome", days=5)),
    ("[look(city='Rome, Italy')]", call(city="Rome, Italy")),
    ("[look(days=[1, 2], deep={'a': true})]", call(days=[1, 2], deep={"a": True})),
    ('[look(a=1), look(city="x")]', [call(a=1), call(city="x")]),
    ('[maps.look(city="a)]b")]', call("maps.look", city="a)]b")),
    ("[look()]", call()),
)


def probe(target: Target) -> Result:
    """Red if a call is lost, or parsed wrongly."""
    module = module_of(target)
    if target.name != "parse_tool_call":
        if not source_file("mlx_lm.tool_parsers.pythonic"):
            raise NotApplicable("this release has no parser for such calls")
        found = load_tokenizer(module).tool_parser
        detail = "the release picks no parser" if found is None else "the release picks a parser"
        return Result(found is None, detail)
    for text, wanted in CASES:
        try:
            given = module.parse_tool_call(text)
        except (ValueError, SyntaxError) as error:
            return Result(True, f"{text!r}: {type(error).__name__}: {error}")
        if given != wanted:
            return Result(True, f"{text!r} is parsed as {given}")
    return Result(False, "every call is parsed correctly")


def load_tokenizer(
    module: Any, tokens: tuple[str, ...] = (), template: str = "{{ messages }}"
) -> Any:
    """Load a tokenizer of a few words, and the tokens around tool calls, with the release."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    tokens = tokens or ("<|tool_call_start|>", "<|tool_call_end|>")
    words = {word: index for index, word in enumerate(("<unk>", "</s>", "hello", *tokens))}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="<unk>")),
        eos_token="</s>",
        unk_token="<unk>",
        chat_template=template,
    )
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        return module.load(Path(folder))
