"""mlx-vlm, vllm-mlx: bad images are dropped, or answered with status 500 and their data.

Why: mlx-vlm's server reports an error while it reads a request's images as its own, with the
    image's data in the detail. ``/v1/responses`` and ``/v1/messages`` drop an image without a
    source, and ``/v1/responses`` of mlx-vlm 0.5 answers any part of a wrong type with status 500.
    vllm-mlx does the same with a picture that cannot be decoded. Prompts of Qwen-VL, InternVL and
    LLaVA-NeXT that lack a placeholder are answered without the image, and prompts of models without
    a video processor, such as GLM-4V and InternVL, without the video. ``batch_generate`` raises
    IndexError for an empty list of images.
How: An error that comes from a request's images becomes a client's error, in one line without the
    data. It is of the kind of a prompt that is too long, which every endpoint answers with status
    400; in mlx-vlm 0.5, which has no such kind, an endpoint's error with status 500 is replaced. A
    stream that has begun ends with the line. An image without a source is such an error too, and so
    is a prompt whose placeholders are not as many as its images or videos, or whose processor drops
    a video. vllm-mlx's images are decoded before the answer begins.
Upstream: Not fixed in mlx-vlm 0.7.10 and vllm-mlx 0.6.0.
Retire when: The servers answer such requests with status 400, and mlx-vlm counts placeholders.
"""

import functools
import importlib
import re
import sys
from typing import Any

from ....core.verbs import Function, Patch, argument, before, result, wrap
from ..._shared.refusals import answer, bad_request, client_error
from ..._shared.targets import vlm_generators, vlm_server

# An object in an error's text, such as a buffer.
_OBJECT = re.compile(r" <[^<>]*>")
_READ, _SHOWN = 1000, 200


def prepare(
    call: Function, server: Any, prompt: Any, images: Any = None, *args: Any, **kwargs: Any
) -> Any:
    """A request's inputs; media that cannot be read are the client's fault."""
    try:
        return call(server, prompt, images, *args, **kwargs)
    except (ValueError, OSError) as error:
        if not any((images, *args, kwargs.get("audio"), kwargs.get("videos"))):
            raise
        raise blame_client(error) from error


def blame_client(error: Exception) -> Exception:
    """The error for a client of mlx-vlm's server."""
    made = describe_error(error)
    kind: Any = type(made)
    made.__class__ = unread_images(kind)
    return made


def describe_error(error: Exception) -> Exception:
    """The error for a client, in one line and without the image's data."""
    text = str(error.__cause__ or error)[:_READ]
    reason = " ".join(_OBJECT.sub("", text).split())
    return client_error(f"Failed to read the images: {reason[:_SHOWN]}")


@functools.cache
def unread_images(kind: Any) -> type[Exception]:
    """The class of an error that a server's endpoints answer with status 400."""
    server: Any = importlib.import_module("mlx_vlm.server")
    known = getattr(getattr(server, "openai", None), "PromptTooLongError", None)
    return type("UnreadImages", (kind, known) if known else (kind,), {})


def answer_client(respond: Function, status: int, message: str, *kind: Any, **more: Any) -> Any:
    """The error of ``/v1/messages``, which takes any error for the server's in mlx-vlm 0.6."""
    if status >= 500 and isinstance(sys.exc_info()[1], bad_request()):
        return respond(400, message)
    return respond(status, message, *kind, **more)


def require_source(source: Any) -> Any:
    """The source of an image in ``/v1/messages``, if it has one."""
    if not source:
        raise blame_client(ValueError("an image has no source"))
    return source


def check_parts(item: Any, /) -> None:
    """Check that each image in a message of ``/v1/responses`` has a source."""
    content = item.get("content") if item.get("type") == "message" else None
    for part in content if isinstance(content, list) else ():
        if isinstance(part, dict) and part.get("type") in ("input_image", "image_url"):
            source = part.get("image_url")
            require_source(source.get("url") if isinstance(source, dict) else source)


def process_counted(
    call: Function, processor: Any, prompts: Any, images: Any, *args: Any, **kwargs: Any
) -> Any:
    """A processor's inputs, if the prompts have a placeholder for each image and video."""
    videos = kwargs.get("videos")
    if not images and not videos:
        return call(processor, prompts, images, *args, **kwargs)
    text = prompts if isinstance(prompts, str) else "\n".join(map(str, prompts))
    media = {"images": images, "videos": videos}
    tokens = {kind: find_token(processor, kind) for kind, given in media.items() if given}
    for kind, token in tokens.items():
        if token:
            check_count(text, token, len(media[kind]), kind)
    inputs = call(processor, prompts, images, *args, **kwargs)
    if videos and not has_video(inputs, images):
        raise client_error(f"{type(processor).__name__} reads no videos: send frames as images")
    for kind, token in tokens.items():
        if token and token not in text and lacks_token(processor, token, inputs):
            raise client_error(
                f"The prompt has no {token}: apply the chat template with the {kind}"
            )
    return inputs


def find_token(processor: Any, kind: str) -> str:
    """The placeholder of images or videos, if a processor names it."""
    return str(getattr(processor, f"{kind[:-1]}_token", None) or "")


def has_video(inputs: Any, images: Any) -> bool:
    """Whether a processor has read a video; some return its frames as images."""
    return any("video" in name for name in inputs) or (not images and "pixel_values" in inputs)


def check_count(text: str, token: str, number: int, kind: str) -> None:
    """Check the number of placeholders, if there are any; an image may have several in a row."""
    count, runs = text.count(token), len(re.findall(f"(?:{re.escape(token)})+", text))
    if count and not runs <= number <= count:
        places = count if count < number else runs
        raise client_error(f"The prompt has {token} {places} times, for {number} {kind}")


def lacks_token(processor: Any, token: str, inputs: Any) -> bool:
    """Whether the processor has added no placeholder of its own."""
    tokenizer = getattr(processor, "tokenizer", processor)
    wanted = tokenizer.convert_tokens_to_ids(token)
    return wanted is not None and not (inputs["input_ids"] == wanted).any().item()


def check_rows(images: Any, prompts: Any) -> Any:
    """The images of ``batch_generate``, at most one per prompt; None if there are none."""
    if not isinstance(images, list):
        return images
    if len(images) > len(prompts):
        raise client_error(f"There are {len(images)} images for {len(prompts)} prompts")
    return images or None


def check_pictures(messages: Any) -> None:
    """vllm-mlx: check that each image of a request has a source, and that its data is a picture."""
    media: Any = importlib.import_module("vllm_mlx.models.mllm")
    for message in messages:
        content = read_field(message, "content")
        for part in content if isinstance(content, list) else ():
            kind = read_field(part, "type")
            if kind in ("image", "image_url"):
                source = read_field(part, kind) or read_field(part, "url")
                decode(media, source if isinstance(source, str) else read_field(source, "url"))


def read_field(held: Any, name: str) -> Any:
    """A field of a JSON object or of a model of pydantic, or None."""
    return held.get(name) if isinstance(held, dict) else getattr(held, name, None)


def decode(media: Any, source: Any) -> None:
    """Decode an image, in the smallest size that its format allows, unless it is to be fetched."""
    pictures: Any = importlib.import_module("PIL.Image")
    try:
        if not source:
            raise ValueError("an image has no source")
        if not media.is_url(source):
            with pictures.open(media.process_image_input(source)) as picture:
                picture.draft("RGB", (1, 1))
                picture.load()
    except Exception as error:  # whatever a format's reader raises
        raise describe_error(error) from None


PATCH = Patch(
    id="vlm-unread-images",
    targets=(
        *wrap(vlm_server("generation", "ResponseGenerator._cpu_preprocess"), prepare),
        *wrap("fastapi.routing:run_endpoint_function", answer, supports=True),
        *wrap("mlx_vlm.server.anthropic:_anthropic_error_response", answer_client),
        *result("mlx_vlm.server.anthropic:_anthropic_image_source_to_ref", require_source),
        *before("mlx_vlm.server.responses_state:_append_response_item_to_prompt", check_parts),
        *wrap("mlx_vlm.utils:process_inputs_with_fallback", process_counted),
        *argument(vlm_generators("batch_generate"), "images", check_rows),
        *before("vllm_mlx.server:_validate_remote_media_urls", check_pictures),
    ),
)
