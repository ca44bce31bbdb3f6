"""mlx_lm.server drops or garbles tool calls of Qwen3-Coder, GLM and Mistral.

Why: Qwen3-Coder writes 5.0 for an integer, JSON with line breaks in its strings, plain text for an
    object, or a name without its ``>``: each raises, and the call is lost; a SyntaxError aborts the
    request. GLM puts a line break after a tool's name, which becomes part of the name. Mistral
    calls several tools at once, tools with a hyphen in their names, or writes a list of calls: the
    release parses none of these.
How: The release parses every call that it can. Names are closed and stripped before it parses them,
    values that make it raise are converted by the tool's schema, and Mistral's calls are passed to
    it one by one.
Upstream: mlx-lm #1239 #1374 #1394 #1417 #1448 #1756; fixed in mlx-lm 0.32.0 to 0.32.2.
Retire when: No supported release is older than mlx-lm 0.32.2.
"""

import ast
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ....core.verbs import Patch, argument, wrap

_NUMBERS = ("int", "uint", "long", "short", "unsigned", "num", "float")
_OPEN_NAME = re.compile(r"(\A\s*|<parameter=\s*)([^\s<>]+)(?=\s*[\n<])")
# Linear in the text: a match begins at the start of a word, and never backtracks.
_HEADER = re.compile(r"(?<![\w-])([\w-]++)\s*+\[ARGS\]\s*")


def convert_value(
    convert: Callable[..., Any], text: str, name: str, schema: Mapping[str, Any], *more: Any
) -> Any:
    """A parameter's value by its schema; the text itself if it cannot be converted."""
    entry = schema.get(name)
    kind = str(entry.get("type", "")).strip().lower() if isinstance(entry, Mapping) else ""
    try:
        value = convert(text, name, schema, *more)
    except (ValueError, SyntaxError):
        if not kind.startswith(_NUMBERS):
            return read_json(text, read_literal(text))
        if is_integer(text):
            return int(float(text))
        raise
    if value is text and not kind and entry:
        read = read_json(text, text)
        return read if isinstance(read, (dict, list)) else text
    return value


def is_integer(text: str) -> bool:
    try:
        return float(text).is_integer()
    except ValueError:
        return False


def read_json(text: str, default: Any) -> Any:
    """Parse JSON, with line breaks allowed in strings; ``default`` if it is not JSON."""
    try:
        return json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return default


def read_literal(text: str) -> Any:
    """Parse a Python literal, as later releases do; the text itself if it is not a literal."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return text


def close_names(function_call_str: str) -> str:
    return _OPEN_NAME.sub(r"\1\2>", function_call_str)


def strip_name(text: str) -> str:
    """A call without white space around its name."""
    name, key, rest = text.partition("<arg_key>")
    return name.strip() + key + rest if key else text


def parse_each_call(parse: Callable[..., Any], text: str, *args: Any, **kwargs: Any) -> Any:
    calls = list(find_calls(text))
    if not calls or (len(calls) == 1 and re.match(r"\s*\w+\[ARGS\]", text)):
        return parse(text, *args, **kwargs)
    results = [
        {**parse(f"tool[ARGS]{arguments}", *args, **kwargs), "name": name}
        for name, arguments in calls
    ]
    return results[0] if len(results) == 1 else results


def find_calls(text: str) -> Iterator[tuple[str, str]]:
    """The name and the arguments, as JSON, of each complete call."""
    listed = read_json(text, None)
    if isinstance(listed, list):
        for call in listed:
            if not (isinstance(call, dict) and isinstance(call.get("name"), str)):
                return
            arguments = call.get("arguments", {})
            yield call["name"], arguments if isinstance(arguments, str) else json.dumps(arguments)
        return
    decoder, at = json.JSONDecoder(), 0
    while header := _HEADER.search(text, at):
        try:
            _, at = decoder.raw_decode(text, header.end())
        except (ValueError, RecursionError):
            return
        yield header.group(1), text[header.end() : at]


_PARSERS = "mlx_lm.tool_parsers"

PATCH = Patch(
    id="server-tool-arguments",
    formerly="tool-arguments",
    targets=(
        *wrap(f"{_PARSERS}.qwen3_coder:_convert_param_value", convert_value),
        *argument(
            f"{_PARSERS}.qwen3_coder:_parse_xml_function_call", "function_call_str", close_names
        ),
        *argument(f"{_PARSERS}.glm47:parse_tool_call", "text", strip_name),
        *wrap(f"{_PARSERS}.mistral:parse_tool_call", parse_each_call),
    ),
)
