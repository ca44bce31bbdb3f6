import importlib

import pytest

from mlx_patches.patches.server.pythonic_calls.patch import find_calls
from mlx_patches.patches.server.pythonic_calls.probe import call, load_tokenizer

from ..releases.models import module_or_skip


@pytest.fixture
def parser():
    return module_or_skip("mlx_lm.tool_parsers.pythonic")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("[look(city='it\\'s')]", [call(city="it's")]),
        ('[look(flag=true, none=null, deep={"a": [false]})]', None),
        ("[look(flag=True, none=None, number=-1.5)]", [call(flag=True, none=None, number=-1.5)]),
        ("words before [look(a=1)] and after", [call(a=1)]),
        ("[a.b.c(x=1), d(y=2), d(y=3)]", [call("a.b.c", x=1), call("d", y=2), call("d", y=3)]),
        ('[look(code="print([1, 2])")]', [call(code="print([1, 2])")]),
        ("[look(city=Rome)]", []),
        ("[look(city='Rome'), nonsense]", []),
        ("[look('Rome')]", []),
        ("[look(**{'city': 'Rome'})]", []),
        ("[(lambda: 1)(city='Rome')]", []),
        ("[f()(city='Rome')]", []),
        ("[look(a=__import__('os'))]", []),
        ("[]", []),
        ("no call", []),
        ("", []),
        ("]look(a=1)[", []),
        ("[look(a='\0')]", []),
        ("[" * 5_000 + "]" * 5_000, []),
    ],
)
def test_python_calls_are_parsed_not_run(text, wanted):
    if wanted is None:
        wanted = [call(flag=True, none=None, deep={"a": [False]})]
    assert list(find_calls(text)) == wanted


@pytest.mark.parametrize("text", ["[look(city=Rome, days=5)]", "[look(city=Rome)] done"])
def test_other_text_is_parsed_as_released(text, parser, ungated):
    released = parser.parse_tool_call(text)
    ungated("server-pythonic-calls")
    assert parser.parse_tool_call(text) == released


def test_text_without_call_is_refused(parser, ungated):
    ungated("server-pythonic-calls")
    with pytest.raises(ValueError, match="No function provided"):
        parser.parse_tool_call("nothing")


def test_only_matching_tokenizers_get_parser(parser, ungated):
    ungated("server-pythonic-calls")
    module = importlib.import_module("mlx_lm.tokenizer_utils")
    tokenizer = load_tokenizer(module)
    assert tokenizer.has_tool_calling
    assert tokenizer.tool_call_start == "<|tool_call_start|>"
    assert tokenizer.tool_parser("[look(a=1)]", None) == call(a=1)
    assert load_tokenizer(module, tokens=("<|tool_call_start|>",)).tool_parser is None
    mistral = load_tokenizer(
        module, ("[TOOL_CALLS]", "<|tool_call_start|>", "<|tool_call_end|>"), "[TOOL_CALLS]"
    )
    assert "pythonic" not in mistral.tool_parser.__module__
