"""Gives vllm-mlx's server the last output of a stream, which has no text."""

from typing import Any

from ....probes.kit import Result, Target, module_with, require_module


def probe(target: Target) -> Result:
    """Red if the server drops the output."""
    server: Any = module_with(target)
    parser = require_module("vllm_mlx.reasoning").get_parser("glm4")()
    read = server._extract_streaming_reasoning_delta
    for text, finished in (('{"a": 1', False), ("}", False), ("", False), ("", True)):
        delta = read(parser, "", text, text, finished=finished)
        if (delta is None) is not (not text and not finished):
            return Result(True, f"text {text!r}, finished {finished}: {delta}")
    return Result(False, "the last output is kept")
