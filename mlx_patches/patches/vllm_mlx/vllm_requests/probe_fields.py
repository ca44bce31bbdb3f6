"""Sends vllm-mlx's engines requests with fields that its server drops."""

import asyncio
import contextvars
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from ....probes.kit import Result, Target, mx, own_class_of
from ....probes.vllm_engine import collect, make_engine, require_processors, stream
from ..._shared.request_fields import FIELDS

_TOKEN, _VOCABULARY = 5, 16
_BODIES: tuple[dict[str, Any], ...] = (
    {"prompt": "hi", "logit_bias": {str(_TOKEN): 100}},
    {"frequency_penalty": -2.0},
)


def probe(target: Target) -> Result:
    """Red if a field has no effect on the next token, or if the tokenizer is a processor."""
    engine = make_engine(own_class_of(target))
    if target.name == "SimpleEngine.tokenizer":
        engine._is_mllm, tokenizer = True, SimpleNamespace()
        engine._model = SimpleNamespace(processor=SimpleNamespace(tokenizer=tokenizer))
        return Result(engine.tokenizer is not tokenizer, "the tokenizer of an image model")
    require_processors(engine)
    for body in _BODIES:
        for send in (stream, collect):
            token = find_token(engine, body, send)
            if token != _TOKEN:
                return Result(True, f"{body}: token {token}, not {_TOKEN}")
    return Result(False, "each field has its effect")


def find_token(engine: Any, body: dict[str, Any], send: Callable[..., Any]) -> int:
    """The next token after some others, by the processors of the request that an engine got."""
    context = contextvars.copy_context()
    context.run(FIELDS.set, body)
    context.run(lambda: asyncio.run(send(engine)))
    logits = mx.arange(_VOCABULARY, 0, -1)[None] * 0.01
    for process in engine.sent[-1].get("logits_processors") or ():
        logits = process(mx.array([1, _TOKEN]), logits)
    if "logit_bias" not in body:  # the penalty is a bonus for both tokens before
        logits[0, 1] = 0
    return int(mx.argmax(logits))
