"""Sends a server data that is no image, and prompts without a placeholder for their image."""

import asyncio
import inspect
from types import SimpleNamespace
from typing import Any
from unittest import mock

from ....probes.kit import Result, Target, class_of, mx, require_module, require_own
from ....probes.vlm_server import make_preparing_server
from ..._shared.refusals import client_error

IMAGE = "data:image/png;base64,bm9uZQ=="
_PART = {"type": "input_image", "image_url": ""}
_NONE = {"type": "image_url", "image_url": {"url": IMAGE}}
# What functions get that drop an image without a source.
_DROPPED: dict[str, tuple[Any, ...]] = {
    "_anthropic_image_source_to_ref": ({"type": "url", "url": ""},),
    "_append_response_item_to_prompt": ({"type": "message", "content": [_PART]}, [], []),
}


def probe(target: Target) -> Result:
    """Red if the error is not the client's, or has the image's data."""
    if target.distribution == "fastapi":
        return probe_endpoint(target)
    read = require_own(target)
    if target.name == "_anthropic_error_response":
        return probe_response(read)
    if target.name == "_validate_remote_media_urls":
        return probe_dropped(read, ([{"role": "user", "content": [_NONE]}],))
    if target.name == "process_inputs_with_fallback":
        return probe_places(read)
    if target.name == "batch_generate":
        return probe_rows(read)
    if target.name in _DROPPED:
        return probe_dropped(read, _DROPPED[target.name])
    tokenizer = SimpleNamespace(pad_token=".", chat_template=None, image_processor=None)
    server = make_preparing_server(class_of(target), tokenizer)
    try:
        server._cpu_preprocess("a prompt", [IMAGE])
    except Exception as error:
        status: Any = getattr(error, "status_code", 500)
        return Result(status != 400 or IMAGE in str(error), f"status {status}: {error}"[:160])
    return Result(True, "the image was read")


def probe_response(respond: Any) -> Result:
    """Red if a client's error is answered as one of the server."""
    try:
        raise client_error("no image")
    except ValueError as error:
        status = respond(500, str(error), "api_error").status_code
    return Result(status != 400, f"status {status}")


def probe_dropped(read: Any, given: Any) -> Result:
    """Red if an image without a source is no error."""
    try:
        read(*given)
    except Exception as error:
        return Result(getattr(error, "status_code", 500) != 400, str(error))
    return Result(True, "the image is dropped")


def probe_places(process: Any) -> Result:
    """Red if a processor gets more images than its prompt has placeholders."""

    def answer(text: Any, images: Any, **more: Any) -> Any:
        return {"input_ids": mx.array([[1, 2]])}

    tokenizer = SimpleNamespace(convert_tokens_to_ids=lambda token: 3)
    processor = SimpleNamespace(process=answer, image_token="<image>", tokenizer=tokenizer)
    for prompt, images in (("<image>", [1, 2]), ("<image> <image>", [1]), ("none", [1])):
        try:
            process(processor, prompt, images, None)
        except ValueError:
            continue
        return Result(True, f"{prompt}: {len(images)} images are accepted")
    if not {"videos", "kwargs"} & {*inspect.signature(inspect.unwrap(process)).parameters}:
        return Result(False, "the images are refused; the release takes no videos")
    try:
        process(processor, "none", None, None, videos=[1])
    except ValueError as error:
        return Result(False, f"refused: {error}")
    return Result(True, "a video is dropped")


def probe_rows(generate: Any) -> Result:
    """Red if an empty list of images is not the same as none."""
    made = inspect.unwrap(generate).__globals__
    processor = SimpleNamespace(detokenizer=SimpleNamespace(reset=lambda: None))
    batch = {"_generate_batch": lambda *args, **kwargs: ([args[2][0]], made["BatchStats"]())}
    with mock.patch.dict(made, batch):
        try:
            texts = generate(None, processor, [], prompts=["text"]).texts
        except Exception as error:
            return Result(True, f"{type(error).__name__}: {error}")
    return Result(texts != ["text"], str(texts))


def probe_endpoint(target: Target) -> Result:
    """Red if an endpoint's error with status 500 hides the client's."""
    fastapi, routing = require_module("fastapi"), require_module(target.module)

    async def endpoint() -> None:
        try:
            raise client_error("no image")
        except Exception as error:
            raise fastapi.HTTPException(status_code=500) from error

    called = SimpleNamespace(call=endpoint)
    run = routing.run_endpoint_function
    try:
        asyncio.run(run(dependant=called, values={}, is_coroutine=True))
    except fastapi.HTTPException as error:
        return Result(error.status_code != 400, f"status {error.status_code}")
    return Result(True, "no error")
