"""Converts a message with vllm-mlx twice, with a different hash in its billing line."""

from typing import Any

from ....probes.kit import Result, Target, import_module, require_module

LINE = "x-anthropic-billing-header: cc_version=1; cch={};"
TEXT = "You are a helpful assistant."


def probe(target: Target) -> Result:
    """Red if the prompts differ, or the rest of the system prompt is lost."""
    adapter = require_module(target.module)
    for form in (_text, _blocks):
        first, second = (_convert_system(adapter, form(hash_)) for hash_ in ("a1b2", "c3d4"))
        if first != second or TEXT not in first:
            return Result(True, f"the prompts are {first!r} and {second!r}")
    return Result(False, "the prompts are the same")


def _text(hash_: str) -> str:
    return f"{LINE.format(hash_)}\n{TEXT}"


def _blocks(hash_: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": LINE.format(hash_)}, {"type": "text", "text": TEXT}]


def _convert_system(adapter: Any, system: Any) -> str:
    models = import_module("vllm_mlx.api.anthropic_models")
    request = models.AnthropicRequest(
        model="m", max_tokens=1, system=system, messages=[{"role": "user", "content": "hi"}]
    )
    return str(adapter.anthropic_to_openai(request).messages[0].content)
