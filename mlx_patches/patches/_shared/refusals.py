"""Refusals of sources that a request names, for the host and its client."""

import functools
import importlib
import json
import logging
from pathlib import PurePath
from typing import Any

from ...core.errors import refusal

logger = logging.getLogger("mlx_patches")


# The number of characters of a source or a reason that an error or a log line shows.
_SHOWN = 120


class Refused(Exception):
    """A source is refused. ``private`` is only for the log: a client may not learn it."""

    def __init__(self, reason: str, private: str = ""):
        super().__init__(reason)
        self.private = private


def as_refusal(patch: str, source: Any, error: Refused, verb: str = "load") -> Exception:
    """The error for the host and its client; the log line also has the private reason."""
    more = f" ({error.private})" if error.private else ""
    logger.warning("mlx_patches: %s refused %s: %s%s", patch, describe_source(source), error, more)
    return client_error(f"Refused to {verb} {describe_source(source)}: {error}")


def client_error(text: str) -> Exception:
    """The refusal of a request that a server answers with status 400 and this text."""
    return refusal(bad_request()(text))


@functools.cache
def bad_request() -> type[ValueError]:
    """The class of a refusal: a ValueError, which FastAPI servers answer with status 400."""
    try:
        kind: type[ValueError] = answer_with(400, ValueError)
    except ImportError:
        return ValueError
    return kind


@functools.cache
def answer_with(status: int, base: Any) -> Any:
    """A subclass of an error that FastAPI servers answer with this status and its message."""
    fastapi: Any = importlib.import_module("fastapi")

    class Answered(base, fastapi.HTTPException):  # type: ignore[misc]
        def __init__(self, message: str):
            fastapi.HTTPException.__init__(self, status_code=status, detail=message)

        def __str__(self) -> str:
            return str(self.detail)

    return Answered


async def answer(call: Any, *args: Any, **arguments: Any) -> Any:
    """A call of an endpoint or its handler; the server does not replace a client's error."""
    try:
        return await call(*args, **arguments)
    except Exception as error:
        if getattr(error, "status_code", 500) < 500:
            raise
        if isinstance(error.__context__, bad_request()):
            raise error.__context__ from None
        text = describe_body_error(error) or describe_body_error(error.__context__)
        if not text:
            raise
    raise client_error(text)


def describe_body_error(error: Any) -> str:
    """A client's error in one line: an invalid body or conversation; empty if it is another one."""
    kind = type(error)
    if kind.__module__ == "jinja2.exceptions" and kind.__name__ != "TemplateSyntaxError":
        return " ".join(f"the chat template refuses the messages: {error}".split())
    if isinstance(error, json.JSONDecodeError):
        return f"the body is not JSON: {error}"
    # The name of pydantic's model.
    if not str(getattr(error, "title", "")).endswith(("Request", "Message")):
        return ""
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    place = max(errors, key=lambda one: len(one["loc"]))
    return f"{'.'.join(map(str, place['loc']))}: {place['msg']}"[:_SHOWN]


def describe_source(source: Any) -> str:
    """A source for a log line: short, on one line, and without an image's data."""
    named = isinstance(source, (str, PurePath))
    text = str(source) if named else f"a {type(source).__name__}"
    if text[:5].lower() == "data:":
        text = text.partition(",")[0][:_SHOWN] + ",..."
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")
