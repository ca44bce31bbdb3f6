"""Sends vllm-mlx's batched engine a request whose logits processor raises."""

import asyncio
import sys
from typing import Any
from unittest import mock

from ....probes.kit import Result, Target, import_module, own_class_of
from ....probes.vllm_engine import collect, make_engine, require_processors, stream


def probe(target: Target) -> Result:
    """Red if the error reaches the engine's step, or does not end the request."""
    if target.name.endswith("__init__"):
        return probe_schema(own_class_of(target))
    engine = make_engine(own_class_of(target))
    require_processors(engine)
    engine.step = lambda processors: [one([3], "logits") for one in processors]
    try:
        streamed = asyncio.run(stream(engine, logits_processors=[fail]))
        whole = asyncio.run(collect(engine, logits_processors=[fail]))
    except ArithmeticError as error:
        return Result(True, f"the error reaches the step of all requests: {error}")
    reasons = [output.finish_reason for output in (*streamed, whole)]
    if reasons != ["error", "error"] or len(engine.closed) != 2:
        return Result(True, f"the request goes on: {reasons}")
    return Result(False, "the error ends its request only")


def probe_schema(kind: Any) -> Result:
    """Red if a processor is made of a schema that has no grammar."""
    tokenizer = import_module("llguidance").LLTokenizer("byte")
    made = (None, tokenizer, frozenset[int]())
    with mock.patch.object(sys.modules[kind.__module__], "_ll_tokenizer", lambda tokenizer: made):
        try:
            kind({"type": "nope"}, tokenizer)
        except ValueError as error:
            return Result(False, str(error))
    return Result(True, "the schema is accepted")


def fail(tokens: Any, logits: Any) -> Any:
    raise ArithmeticError("no such token")
