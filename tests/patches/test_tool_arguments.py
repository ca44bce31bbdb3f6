import pytest

from mlx_patches.patches.server.tool_arguments.patch import close_names, find_calls, strip_name

from ..releases.models import module_or_skip


def convert(text, **schema):
    module = module_or_skip("mlx_lm.tool_parsers.qwen3_coder")
    return module._convert_param_value(text, "p", {"p": schema})


@pytest.mark.parametrize(
    ("text", "kind", "wanted"),
    [
        ("7", "integer", 7),
        ("-7.0", "integer", -7),
        ("7.5", "number", 7.5),
        ("null", "integer", None),
        ("true", "boolean", True),
        ("{'a': 1}", "object", {"a": 1}),
        ('{"a": 1}', "object", {"a": 1}),
        ("[1, 2", "array", "[1, 2"),
        ("7", "string", "7"),
        ("some words", "whatever", "some words"),
    ],
)
def test_value_follows_schema(text, kind, wanted, ungated):
    ungated("server-tool-arguments")
    value = convert(text, type=kind)
    assert value == wanted
    assert type(value) is type(wanted)


@pytest.mark.parametrize(("text", "kind"), [("seven", "integer"), ("7.5", "int"), ("x", "number")])
def test_invalid_number_is_error(text, kind, ungated):
    manager = ungated("server-tool-arguments")
    for _ in range(5):
        with pytest.raises(ValueError):
            convert(text, type=kind)
    assert convert("7.0", type="integer") == 7
    assert all(outcome.status != "failed" for outcome in manager.status())


def test_right_names_are_kept():
    for call in ("f>\n<parameter=a>\n1\n</parameter>\n", "f><parameter=a b>1</parameter>", ""):
        assert close_names(call) == call
    assert close_names("f\n<parameter=a\n1\n</parameter>") == "f>\n<parameter=a>\n1\n</parameter>"
    assert strip_name(" f \n<arg_key>a\n") == "f<arg_key>a\n"
    assert strip_name(" no call \n") == " no call \n"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("no call", []),
        ('a[ARGS]{"x": "b[ARGS]{}"}', ["a"]),
        ('a[ARGS]{"x": 1} b-c [ARGS] {"y": [2]}', ["a", "b-c"]),
        ('a[ARGS]{"x": 1', []),
        ('[{"name": "a"}, {"name": "b", "arguments": "{}"}]', ["a", "b"]),
        ("[1, 2]", []),
    ],
)
def test_complete_calls_are_found(text, names):
    assert [name for name, _ in find_calls(text)] == names


def test_truncated_call_is_error(ungated):
    module = module_or_skip("mlx_lm.tool_parsers.mistral")
    ungated("server-tool-arguments")
    with pytest.raises(ValueError):
        module.parse_tool_call('look[ARGS]{"days": ')
