"""vllm-mlx's model for images without weights; the text of mlx-vlm's outputs comes a token late."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from .kit import import_module

TEXT = "abc"
MESSAGES = [{"role": "user", "content": "hi"}]


def make_model() -> Any:
    """A model of vllm-mlx that generates with mlx-vlm."""
    model = import_module("vllm_mlx.models.mllm").MLXMultimodalLM("model", enable_cache=False)
    model._loaded = True
    model.processor = SimpleNamespace(
        chat_template="", apply_chat_template=lambda *args, **options: "prompt", encode=list
    )
    return model


def generate_stream(*args: Any, max_tokens: int, **options: Any) -> Iterator[Any]:
    """One output per token, without the text of the last one; then one with the rest."""
    count = min(max_tokens, len(TEXT))
    for number in range(count):
        yield SimpleNamespace(text=TEXT[max(0, number - 1) : number], finish_reason=None)
    reason = "length" if count == max_tokens else "stop"
    tokens = min(max_tokens, len(TEXT) + 1)
    yield SimpleNamespace(text=TEXT[count - 1], finish_reason=reason, generation_tokens=tokens)


def generate(*args: Any, max_tokens: int, **options: Any) -> Any:
    """All of these outputs in one."""
    outputs = list(generate_stream(max_tokens=max_tokens))
    outputs[-1].text = "".join(one.text for one in outputs)
    return outputs[-1]


def chat(model: Any, limit: int) -> tuple[str, str, int]:
    output = model.chat(MESSAGES, max_tokens=limit)
    return output.text, output.finish_reason, output.completion_tokens


def complete(model: Any, limit: int) -> tuple[str, str, int]:
    """A completion, of which the engine takes as many outputs as tokens."""
    outputs = list(model.stream_generate("hi", max_tokens=limit))[:limit]
    text = "".join(one.text for one in outputs)
    return text, outputs[-1].finish_reason, len(outputs)
