"""Finds values of a request that no server can follow, which servers ignore or fail on."""

import json
import math
from collections.abc import Container, Iterable, Iterator, Mapping
from types import NoneType
from typing import Any

from .request_fields import LARGEST, find_bias_fault
from .stop_strings import find_stop_fault

# The fields with a number: the least one, the largest one, and whether it is whole.
_NUMBERS: Mapping[str, tuple[float, float, bool]] = {
    "temperature": (0, LARGEST, False),
    "repetition_penalty": (0, LARGEST, False),
    "timeout": (0, math.inf, False),
    "seed": (-math.inf, math.inf, True),
    "top_k": (-1, math.inf, True),
    **dict.fromkeys(("top_p", "min_p", "typical_p"), (0, 1, False)),
    **dict.fromkeys(("xtc_probability", "xtc_threshold"), (0, 1, False)),
    **dict.fromkeys(("presence_penalty", "frequency_penalty"), (-LARGEST, LARGEST, False)),
    **dict.fromkeys(("n", "top_logprobs"), (0, math.inf, True)),
    # mlx_vlm.server makes its own limit of 0, and one of the least of a negative number.
    **dict.fromkeys(
        tuple(f"max_{one}tokens" for one in ("", "completion_", "output_")), (1, math.inf, True)
    ),
    **dict.fromkeys(
        tuple(f"{one}_context_size" for one in ("repetition", "presence", "frequency")),
        (0, math.inf, True),
    ),
    **dict.fromkeys(("thinking_budget", "thinking_token_budget"), (-1, math.inf, True)),
}
# Characters in the name of a file.
_LONGEST = 255
_DEEPEST = 200
# mlx-vlm has another name for ``json_object``.
_FORMATS = (None, "text", "object", "json_object", "json_schema")
TEXTS = ("text", "input_text", "output_text")
VIDEOS = frozenset({"video", "video_url", "input_video"})
MEDIA = VIDEOS.union(("image", "image_url", "input_image", "input_audio", "audio", "audio_url"))
# The fields of a message that are no content.
_NOTES = frozenset({"role", "type", "id", "name", "status", "summary", "content"})
# The types of a message's parts that some server reads.
_PARTS = MEDIA.union(
    TEXTS,
    ("refusal", "tool_use", "tool_result", "thinking", "redacted_thinking", "document"),
    ("summary_text", "reasoning_text"),
)


def find_value_fault(body: Any) -> str:
    """What is wrong with the first such value of a request's body; empty if none is."""
    if not isinstance(body, dict):
        return "the body is not a JSON object"
    fault = next(filter(None, (find_fault(*field) for field in body.items())), "")
    return fault or find_choice_fault(body.get("tool_choice"), body.get("tools") or ())


def find_fault(name: str, value: Any) -> str:
    """What is wrong with the value of a field; empty if it is right, or none."""
    try:
        json.dumps({name: value}, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:  # of UTF-8 as well
        return f"{name!a}: not JSON: {error}"
    if is_deep(value):  # mlx-openai-server cannot pass it on to its handler's process
        return f"{name}: more than {_DEEPEST} levels of nesting"
    if name == "messages" or (name == "input" and isinstance(value, list)):
        return next(filter(None, find_message_faults(name, value)), "")
    if value is None:
        return ""
    if name == "prompt" and value == []:
        return "prompt: empty"
    if name in _NUMBERS:
        return find_number_fault(name, value)
    if name == "logit_bias":
        return find_bias_fault(value)
    if name in ("stop", "stop_sequences"):
        return find_stop_fault(value)
    if name == "tool_choice":
        kind = value.get("type") if isinstance(value, dict) else value
        return (
            ""
            if isinstance(kind, str)
            else "tool_choice: neither a text nor an object that names a function"
        )
    if name == "model":  # it may be a path
        right = isinstance(value, str) and max(map(len, value.split("/"))) <= _LONGEST
        return "" if right else f"model: not a name of at most {_LONGEST} characters"
    if name == "response_format":
        return find_format_fault(value)
    tools = value if name == "tools" else []
    right = isinstance(tools, list) and all(map(is_tool, tools))
    return "" if right else "tools: not a list of objects"


def is_tool(tool: Any) -> bool:
    return isinstance(tool, dict) and isinstance(tool.get("function", {}), dict)


def find_choice_fault(choice: Any, tools: Iterable[Mapping[str, Any]]) -> str:
    """What is wrong with a ``tool_choice`` that names a tool; its type is right."""
    if not isinstance(choice, dict) or choice.get("type") not in ("function", "tool"):
        return ""
    named, *known = (
        one["function"].get("name") if isinstance(one.get("function"), dict) else one.get("name")
        for one in (choice, *tools)
    )
    return "" if named and named in known else f"tool_choice: no tool is named {str(named)[:50]!r}"


def is_deep(value: Any) -> bool:
    """Whether a value is nested more deeply than ``_DEEPEST``."""
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(_DEEPEST):
        inner = [one.values() if isinstance(one, dict) else one for one in level]
        level = [one for part in inner for one in part if isinstance(one, (dict, list))]
        if not level:
            return False
    return True


def find_number_fault(name: str, value: Any) -> str:
    least, most, is_whole = _NUMBERS[name]
    try:  # servers also take a number's text
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if least <= number <= most and not (is_whole and number % 1):
        return ""
    kind = "whole number" if is_whole else "number"
    return f"{name}: {str(value)[:20]!r} is not a {kind} from {least:g} to {most:g}"


def read_numbers(body: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers that a body has as texts: a server may read them without converting them."""
    texts = [name for name in _NUMBERS if isinstance(body.get(name), str)]
    return {
        name: (int if _NUMBERS[name][2] else float)(float(body[name]))
        for name in texts
        if not find_number_fault(name, body[name])
    }


def find_format_fault(form: Any) -> str:
    if not isinstance(form, dict):
        return "response_format: not an object"
    kind = form.get("type")
    if kind not in _FORMATS:
        return f"response_format: {str(kind)[:20]!r} is not a type of it"
    if kind != "json_schema":
        return ""
    nested = form if "schema" in form else form.get("json_schema")
    right = isinstance(nested, dict) and isinstance(nested.get("schema", {}), dict)
    return "" if right else "response_format: json_schema has no schema that is an object"


def find_message_faults(name: str, messages: Any) -> Iterator[str]:
    """What is wrong with each message; an empty text if it is right."""
    if not isinstance(messages, list):
        yield f"{name}: not a list"
    elif all(isinstance(one, dict) and is_empty(one) for one in messages):
        yield f"{name}: empty"
    for number, message in enumerate(messages):
        if not isinstance(message, dict):
            if name == "messages":
                yield f"{name}.{number}: not an object"
            continue
        content = message.get("content")
        if not isinstance(content, (str, list, NoneType)):
            yield f"{name}.{number}.content: not a text or a list of parts"
        for part in content if isinstance(content, list) else ():
            yield find_part_fault(f"{name}.{number}.content", part)


def is_empty(message: Mapping[str, Any]) -> bool:
    return message.get("content") is None and message.keys() <= _NOTES


def has_media(body: Mapping[str, Any], kinds: Container[str] = MEDIA) -> bool:
    """Whether a message of a body without faults has a part of these types."""
    messages = body.get("messages", body.get("input"))
    contents = [one.get("content") for one in messages or () if isinstance(one, dict)]
    parts = [part for one in contents if isinstance(one, list) for part in one]
    return any(part["type"] in kinds for part in parts)


def find_part_fault(place: str, part: Any) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(kind, str) or kind not in _PARTS:
        return f"{place}: a part of type {str(kind)[:20]!r} is not supported"
    if kind in TEXTS and not isinstance(part.get("text"), str):
        return f"{place}: a part of type {kind!r} has no text"
    source = part.get(kind, part.get("image_url", part)) if kind in MEDIA else part
    if isinstance(source, dict) and kind.endswith("_url"):
        source = source.get("url")
    right = source and isinstance(source, (str, dict, list))
    return "" if right else f"{place}: {kind} has no source"
