"""Asks vllm-mlx's scheduler for prompts that share a prefix, and compares with a fresh one."""

from __future__ import annotations

import importlib
from typing import Any

from .._patch import Target
from . import NotApplicable, Result
from .vllm_scheduler import Server, llama, sliding_llama

_PREFIX = [1 + (7 * i) % 90 for i in range(600)]


def probe(target: Target) -> Result:
    """Red where an answer depends on what was asked before."""
    prompts: list[list[int]]
    if target.name == "_trim_cache_offset":
        if not hasattr(importlib.import_module(target.module), target.name):
            raise NotApplicable("this release does not cut prefixes back")
        # Fewer new tokens than a window holds, more than one.
        prompts = [[*_PREFIX, 91], [*_PREFIX, 92, 93]]
        model = sliding_llama()
    else:
        prompts = [[*_PREFIX, *more] for more in ([91], [91], [], [92, 93], [91])]
        model = llama()
    server = _server(model)
    answers = [server.answer(prompt) for prompt in prompts]
    for index, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        alone = _server(model).answer(prompt)
        if answer != alone:
            return Result(True, f"request {index}: {answer[:4]}…, asked first {alone[:4]}…")
    return Result(False, "every answer is that of a fresh server")


def _server(model: Any) -> Server:
    return Server(model, use_memory_aware_cache=True, cache_memory_mb=64)
