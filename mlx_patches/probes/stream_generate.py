"""The arguments with which mlx-vlm's stream_generate calls its model."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any
from unittest import mock


class Stopped(Exception):
    """Raised in place of the model's call, with the call's keyword arguments."""


def capture_options(module: Any, **options: Any) -> dict[str, Any]:
    """Call ``stream_generate``; returns the keyword arguments that its model would get."""

    def stop(*args: Any, **kwargs: Any) -> None:
        raise Stopped(kwargs)

    tokenizer = SimpleNamespace(all_special_ids=[], stopping_criteria=lambda token: False)
    processor = SimpleNamespace(
        tokenizer=tokenizer, detokenizer=SimpleNamespace(reset=lambda: None), chat_template=None
    )
    model = SimpleNamespace(
        config=SimpleNamespace(model_type="gemma3"),
        language_model=SimpleNamespace(layers=[]),
        encode_image=lambda pixels: pixels + 0,
    )
    stands = {"generate_step": stop, "wired_limit": lambda *args: nullcontext()}
    if hasattr(module, "make_streaming_detokenizer"):
        stands["make_streaming_detokenizer"] = lambda processor: None
    with mock.patch.dict(vars(module), stands):
        try:
            next(module.stream_generate(model, processor, "", **options))
        except Stopped as stopped:
            given: dict[str, Any] = stopped.args[0]
            return given
    raise AssertionError("stream_generate did not call its model")
