"""mlx_vlm.server answers images that cannot be read with status 500 and their data.

Why: The server reads a request's images where any error counts as its own. A picture that cannot be
    decoded, or fewer images than the prompt has placeholders, is answered with status 500, and the
    detail repeats the image's data.
How: An error that comes from a request's images becomes a client's error, in one line without the
    data. It is of the kind of a prompt that is too long, which every endpoint answers with status
    400; in mlx-vlm 0.5, which has no such kind, an endpoint's error with status 500 is replaced. A
    stream that has begun ends with the line.
Upstream: Not fixed in mlx-vlm 0.7.10.
Retire when: The server answers such requests with status 400.
"""

import functools
import importlib
import re
from typing import Any

from ....core.verbs import Function, Patch, wrap
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
        raise


PATCH = Patch(
    id="vlm-unread-images",
    every_model=True,
    targets=(
        *wrap(vlm_server("generation", "ResponseGenerator._cpu_preprocess"), prepare),
        *wrap("fastapi.routing:run_endpoint_function", answer, supports=True),
    ),
)
