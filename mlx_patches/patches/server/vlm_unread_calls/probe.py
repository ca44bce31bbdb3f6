"""Feeds the server's generator calls that its parser cannot read, or that are not complete."""

import contextlib
import io
from types import SimpleNamespace
from typing import Any

from ....probes.kit import Result, Target, require_module, require_own
from ....probes.vlm_server import make_silent_generator

_TEMPLATE = "<tool_call>{{ tool_call.name }}</tool_call>"
_TOOLS = [{"type": "function", "function": {"name": "f"}}]
GOOD, BROKEN = '{"name": "f", "arguments": {}}', '{"name": "f", "arguments": {]}'
START, END = "<tool_call>", "</tool_call>"


def probe(target: Target) -> Result:
    """Red if the text of an unreadable or unfinished call is between markers, which are removed."""
    require_own(target)
    for pieces, wanted in (
        (["a", START, BROKEN, END, "b"], f"a{BROKEN}b"),
        (["a", START, GOOD[:9]], f"a{GOOD[:9]}"),
        (["a", START, GOOD, END], f"a{START}{GOOD}{END}"),
    ):
        text = "".join(token.text for token in read_answer(pieces))
        if text != wanted:
            return Result(True, f"the text of {pieces} is {text!r}")
    return Result(False, "only a readable call is between markers")


def read_answer(pieces: list[str], **sent: Any) -> list[Any]:
    """The tokens of an answer with these texts to a request with a tool."""
    server = require_module("mlx_vlm.server")
    processor = SimpleNamespace(tokenizer=SimpleNamespace(chat_template=_TEMPLATE))
    request = SimpleNamespace(
        **{"tools": _TOOLS, "max_tokens": 9, "temperature": 0.0, "top_p": 1.0, **sent}
    )
    args = server._build_gen_args(request, processor)
    with contextlib.redirect_stdout(io.StringIO()):  # mlx-vlm 0.5 prints unreadable calls
        return list(make_silent_generator(pieces).generate("hi", args=args)[1])
