"""Builds the arguments of a request that requires a call, and reads the tools of its body."""

import asyncio
from types import SimpleNamespace
from typing import Any

from ....probes.kit import Result, Target, module_of, mx, read_body, require_module, require_own

TOOLS = [{"type": "function", "function": {"name": name}} for name in ("f", "g")]
_TEMPLATE = "<tool_call>{{ tool_call.name }}</tool_call>"
_CALL, _TEXT = 5, 7


def probe(target: Target) -> Result:
    """Red if the answer may begin with text, or a request keeps tools that may not be called."""
    server = require_module("mlx_vlm.server")
    if target.distribution == "starlette":
        sent = {"tools": TOOLS, "tool_choice": "none"}
        body = asyncio.run(read_body(module_of(target).Request, "mlx_vlm.server.openai", sent))
        kept = body["tools"]
        return Result(bool(kept), f"tool_choice none leaves the tools {kept}")
    require_own(target)
    first = begin_answer(server, "required")
    return Result(
        first[_TEXT] == 0, f"logits of a call and of text: {first[_CALL]}, {first[_TEXT]}"
    )


def begin_answer(server: Any, choice: Any, tools: Any = TOOLS, **sent: Any) -> list[float]:
    """The logits of the first token of an answer; all were 0."""
    tokenizer = SimpleNamespace(chat_template=_TEMPLATE, encode=lambda *_, **__: [_CALL])
    request = SimpleNamespace(
        tools=tools, tool_choice=choice, max_tokens=9, temperature=0.0, top_p=1.0, **sent
    )
    args = server._build_gen_args(request, SimpleNamespace(tokenizer=tokenizer))
    logits = mx.zeros((1, 8))
    for process in args.logits_processors or ():
        logits = process(mx.array([1, 2]), logits)
    return list(logits[0].tolist())
