import importlib
import json
import pkgutil

import pytest

from ..releases.models import module_or_skip

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "f",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "string"}, "n": {"type": "integer"}},
            },
        },
    }
]
TEXTS = (
    *("", " ", "f", "f(", "{", "[]", "[3]", "null", "12", '"f"', '["f"]', '{"arguments": {}}'),
    *('{"name": "f"}', '{"name": 3, "arguments": {}}', '{"name": "f", "arguments": null}'),
    *("<function=f>", "<function=f>\n<parameter=n>\n{'a': [1,\n</parameter>\n</function>"),
    *("f\n<arg_key>a</arg_key>", "[f(a=1", "[f(a={1, 2})]", "[f(a=b'x')]", "f[ARGS]{", "[ARGS]{}"),
    *("call:f{", "call:{}", '<invoke name="f">', "functions.f:0<|tool_call_argument_begin|>{"),
    "f\n<longcat_arg_key>a</longcat_arg_key><longcat_arg_value>{1, 2}</longcat_arg_value>",
    "<longcat_arg_key>a</longcat_arg_key>",
    "[" * 3000,
)
RIGHT = {"name": "f", "arguments": {"a": "x"}}


def parsers():
    try:
        package = importlib.import_module("mlx_lm.tool_parsers")
    except ModuleNotFoundError:
        return []
    return sorted(module.name for module in pkgutil.iter_modules(package.__path__))


@pytest.fixture
def formatter(ungated):
    server = module_or_skip("mlx_lm.server", "ToolCallFormatter")
    ungated("server-tool-errors")
    return server.ToolCallFormatter


@pytest.mark.parametrize("name", parsers())
def test_any_model_output_is_answered(name, formatter):
    parse = importlib.import_module(f"mlx_lm.tool_parsers.{name}").parse_tool_call
    for text in TEXTS:
        for call in formatter(parse, TOOLS)([text]):
            assert isinstance(call["function"]["name"], str)
            json.loads(call["function"]["arguments"])


def test_right_call_is_unchanged(formatter):
    calls = [RIGHT, {"name": "f", "arguments": "x", "id": "1"}]
    for streaming in (False, True):
        one = formatter(lambda text, tools: [dict(call) for call in calls], TOOLS, streaming)
        first, second = one(["a"])
        assert json.loads(first["function"]["arguments"]) == {"a": "x"}
        assert (second["id"], second["function"]["arguments"]) == ("1", '"x"')
        assert [call.get("index") for call in (first, second)] == (
            [0, 1] if streaming else [None] * 2
        )


def test_call_without_arguments(formatter):
    (call,) = formatter(lambda text, tools: {"name": "f"}, None)(["a"])
    assert call["function"] == {"name": "f", "arguments": "{}"}


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_exits_are_not_caught(interrupt, formatter):
    def parse(text, tools):
        raise interrupt

    with pytest.raises(interrupt):
        formatter(parse, None)(["a"])
