"""Parses tool calls as models write them."""

from typing import Any

from ....probes.kit import Result, Target, module_of

_SCHEMA = {
    "days": {"type": "integer"},
    "where": {"type": "object"},
    "city": {"type": "string"},
    "any": {"description": "whatever"},
}
_TOOLS = [
    {
        "type": "function",
        "function": {"name": "look", "parameters": {"type": "object", "properties": _SCHEMA}},
    }
]


def _qwen(name: str, value: str, close: str = ">") -> str:
    return f"<function=look>\n<parameter={name}{close}\n{value}\n</parameter>\n</function>"


def _look(**arguments: Any) -> dict[str, Any]:
    return {"name": "look", "arguments": arguments}


# By module and target: a model's text, and the call that it means.
CASES: dict[str, tuple[tuple[str, Any], ...]] = {
    "qwen3_coder:_convert_param_value": (
        (_qwen("days", "5"), _look(days=5)),
        (_qwen("days", "5.0"), _look(days=5)),
        (_qwen("where", '{"a": "b\nc"}'), _look(where={"a": "b\nc"})),
        (_qwen("where", "the sea"), _look(where="the sea")),
        (_qwen("any", '["a"]'), _look(any=["a"])),
        (_qwen("city", "5.0"), _look(city="5.0")),
    ),
    "qwen3_coder:_parse_xml_function_call": (
        (_qwen("city", "Rome"), _look(city="Rome")),
        (_qwen("city", "Rome", ""), _look(city="Rome")),
        (_qwen("city", "a > b", ""), _look(city="a > b")),
    ),
    "glm47:parse_tool_call": (
        ("look<arg_key>city</arg_key><arg_value>Rome</arg_value>", _look(city="Rome")),
        ("look\n<arg_key>city</arg_key>\n<arg_value>5</arg_value>", _look(city="5")),
    ),
    "mistral:parse_tool_call": (
        ('look[ARGS]{"days": 5}', _look(days=5)),
        ('look[ARGS]{"days": 5}look[ARGS]{"days": 6}', [_look(days=5), _look(days=6)]),
        ('look-up[ARGS]{"days": 5}', {**_look(days=5), "name": "look-up"}),
        ('[{"name": "look", "arguments": {"days": 5}}]', _look(days=5)),
    ),
}


def probe(target: Target) -> Result:
    """Red if a call is lost, or parsed wrongly."""
    module = module_of(target)
    for text, wanted in CASES[target.path.removeprefix("mlx_lm.tool_parsers.")]:
        try:
            given = module.parse_tool_call(text, _TOOLS)
        except (ValueError, SyntaxError) as error:
            return Result(True, f"{text!r}: {type(error).__name__}: {error}")
        if given != wanted:
            return Result(True, f"{text!r} is parsed as {given}")
    return Result(False, "every call is parsed correctly")
