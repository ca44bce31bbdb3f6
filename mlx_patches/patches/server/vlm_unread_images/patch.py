"""mlx_vlm.server answers images that cannot be read with status 500 and their data, or drops them.

Why: The server reads a request's images where any error counts as its own. A picture that cannot be
    decoded, or fewer images than the prompt has placeholders, is answered with status 500, and the
    detail repeats the image's data. ``/v1/responses`` and ``/v1/messages`` drop an image without a
    source, and ``/v1/responses`` of mlx-vlm 0.5 answers any part of a wrong type with status 500.
How: An error that comes from a request's images becomes a client's error, in one line without the
    data. It is of the kind of a prompt that is too long, which every endpoint answers with status
    400; in mlx-vlm 0.5, which has no such kind, an endpoint's error with status 500 is replaced. A
    stream that has begun ends with the line. An image without a source is such an error too.
Upstream: Not fixed in mlx-vlm 0.7.10.
Retire when: The server answers such requests with status 400.
"""

import functools
import importlib
import re
import sys
from typing import Any

from ....core.verbs import Function, Patch, before, result, wrap
from ..._shared.refusals import bad_request, client_error
from ..._shared.targets import vlm_server

# An object in an error's text, such as a buffer.
_OBJECT = re.compile(r" <[^<>]*>")
_READ, _SHOWN = 1000, 200


def prepare(
    call: Function, server: Any, prompt: Any, images: Any = None, *args: Any, **kwargs: Any
) -> Any:
    """A request's inputs; images that cannot be read are the client's fault."""
    try:
        return call(server, prompt, images, *args, **kwargs)
    except (ValueError, OSError) as error:
        if not images:
            raise
        raise blame_client(error) from error


def blame_client(error: Exception) -> Exception:
    """The error for a client, in one line and without the image's data."""
    text = str(error.__cause__ or error)[:_READ]
    reason = " ".join(_OBJECT.sub("", text).split())
    made = client_error(f"Failed to read the images: {reason[:_SHOWN]}")
    kind: Any = type(made)
    made.__class__ = unread_images(kind)
    return made


@functools.cache
def unread_images(kind: Any) -> type[Exception]:
    """The class of an error that a server's endpoints answer with status 400."""
    server: Any = importlib.import_module("mlx_vlm.server")
    known = getattr(getattr(server, "openai", None), "PromptTooLongError", None)
    return type("UnreadImages", (kind, known) if known else (kind,), {})


async def answer(call: Function, **arguments: Any) -> Any:
    """FastAPI's call of an endpoint; a client's error is not replaced by one of the server."""
    try:
        return await call(**arguments)
    except Exception as error:
        if isinstance(error.__context__, bad_request()):
            raise error.__context__ from None
        invalid: Any = error
        if getattr(error, "title", "") != "OpenAIRequest":  # an error of pydantic's
            raise
        errors = invalid.errors(include_url=False, include_context=False, include_input=False)
        place = max(errors, key=lambda one: len(one["loc"]))
    raise client_error(f"{'.'.join(map(str, place['loc']))}: {place['msg']}"[:_SHOWN])


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


PATCH = Patch(
    id="vlm-unread-images",
    every_model=True,
    targets=(
        *wrap(vlm_server("generation", "ResponseGenerator._cpu_preprocess"), prepare),
        *wrap("fastapi.routing:run_endpoint_function", answer, supports=True),
        *wrap("mlx_vlm.server.anthropic:_anthropic_error_response", answer_client),
        *result("mlx_vlm.server.anthropic:_anthropic_image_source_to_ref", require_source),
        *before("mlx_vlm.server.responses_state:_append_response_item_to_prompt", check_parts),
    ),
)
