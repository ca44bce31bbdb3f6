"""Generates with vllm-mlx's model for images, and notes the options that mlx-vlm gets."""

from typing import Any
from unittest import mock

from ....probes.kit import NotApplicable, Result, Target, class_of, module_of, require
from ....probes.vllm_media import chat, complete, generate, generate_stream, make_model

_TEMPERATURE = 0.7


def probe(target: Target) -> Result:
    """Red if a temperature of 0.7, the default, reaches mlx-vlm by another name."""
    require(target)
    if hasattr(module_of(target), "_stream_mllm_generated_outputs"):
        raise NotApplicable("this release passes the temperature")
    if not hasattr(class_of(target), "_draft_generation_kwargs"):
        raise NotApplicable("this release has no place to name the temperature: not repaired")
    got: list[Any] = []

    def note(released: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            got.append(options.get("temperature"))
            return released(*args, **options)

        return call

    with mock.patch.multiple(
        "mlx_vlm", stream_generate=note(generate_stream), generate=note(generate)
    ):
        for answer in (chat, complete, stream):
            answer(make_model(), 3)
    return Result(got != [_TEMPERATURE] * 3, f"temperatures that mlx-vlm gets: {got}")


def stream(model: Any, limit: int) -> None:
    list(model.stream_chat([{"role": "user", "content": "hi"}], max_tokens=limit))
