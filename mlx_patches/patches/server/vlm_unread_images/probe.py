"""Sends a server an image that is none."""

from types import SimpleNamespace
from typing import Any

from ....probes.kit import Result, Target, class_of, require_own
from ....probes.vlm_server import make_preparing_server

IMAGE = "data:image/png;base64,bm9uZQ=="


def probe(target: Target) -> Result:
    """Red if the error is no client's error, or if it has the image's data."""
    require_own(target)
    tokenizer = SimpleNamespace(pad_token=".", chat_template=None, image_processor=None)
    server = make_preparing_server(class_of(target), tokenizer)
    try:
        server._cpu_preprocess("a prompt", [IMAGE])
    except Exception as error:
        status: Any = getattr(error, "status_code", 500)
        return Result(status != 400 or IMAGE in str(error), f"status {status}: {error}"[:160])
    return Result(True, "the image was read")
