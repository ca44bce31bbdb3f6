"""Limits for the images, audio and videos of a request, as plain functions.

A request may contain a URL whose response is endless, or an image that decodes to a terabyte.
Nothing here depends on a release; ``limited`` and ``public`` apply it to releases.

A refusal is the exception ``Refused``.
"""

import base64
import importlib
import io
import threading
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from ..._shared.refusals import Refused

MEBIBYTE = 2**20
_CHUNK = 2**16

Answer = TypeVar("Answer")


class Limits(NamedTuple):
    """The limits for one file.

    Args:
        size: in bytes, both as sent and after HTTP's decompression.
        seconds: from the first lookup of the host's name to the end of the file.
        pixels: width times height of an image.
    """

    size: int
    seconds: float
    pixels: int = 178_956_970  # Pillow's own limit, unless the host disabled it


# No camera makes larger images; an hour of uncompressed audio, or a clip, is larger than these.
IMAGE = Limits(64 * MEBIBYTE, 60.0)
MEDIA = Limits(512 * MEBIBYTE, 300.0)


class Fetched(NamedTuple):
    """A fetched file, and the MIME type that its server reported."""

    content: bytes
    mime: str


class Expiry:
    """The deadline of a job that runs in another thread."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._stop: Callable[[], object] = lambda: None

    def on_expiry(self, stop: Callable[[], object]) -> None:
        """Set a function that ends the job's wait; it runs at once if the time is over.

        If the time ends concurrently, both threads may call it.
        """
        self._stop = stop
        if self._over.is_set():
            stop()

    def expire(self) -> None:
        """Declare the time over, and end the job's wait."""
        self._over.set()
        self._stop()

    def check(self) -> None:
        """Refuse to continue if the job's caller no longer waits."""
        if self._over.is_set():
            raise Refused("it took too long")


def run_within(seconds: float, job: Callable[[Expiry], Answer]) -> Answer:
    """Run a job in a thread, with a time limit: nothing else limits name lookups and slow headers.

    Raises:
        Refused: the time is over; the job's thread ends at its next check of the expiry.
    """
    expiry = Expiry()
    answers: list[Answer] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(job(expiry))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="mlx_patches-fetch", daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors.pop()  # out of the list: its traceback references this frame
    if answers:
        return answers.pop()
    expiry.expire()
    raise Refused(f"it took longer than {seconds:g} s")


def read_limited(read: Callable[[int], bytes], limits: Limits, expiry: Expiry) -> bytes:
    """Read a stream to its end.

    Raises:
        Refused: the content is too large, or the time is over.
        TypeError: a chunk is not bytes: the stand-in of a test, which may be endless.
    """
    chunks, size = [], 0
    while chunk := read(_CHUNK):
        if not isinstance(chunk, bytes):
            raise TypeError(f"a response's stream returned a {type(chunk).__name__}")
        expiry.check()
        size += len(chunk)
        if size > limits.size:
            raise Refused(f"it is larger than {limits.size // MEBIBYTE} MiB")
        chunks.append(chunk)
    return b"".join(chunks)


def check_length(length: str | None, limits: Limits) -> None:
    """Refuse a response by its ``Content-Length``, before any of it is read."""
    if length is not None and length.strip().isdecimal() and int(length) > limits.size:
        raise Refused(f"it is larger than {limits.size // MEBIBYTE} MiB")


def check_data_url(url: str, limits: Limits) -> bytes:
    """Refuse an inline image that is too large; returns its bytes, none if it is not base64."""
    data = url.partition(",")[2]
    if len(data) > (limits.size + 2) // 3 * 4 * 1.1:  # a tenth more, for line breaks
        raise Refused(f"it is larger than {limits.size // MEBIBYTE} MiB")
    try:
        content = base64.b64decode(data)
    except ValueError:
        return b""  # the release raises its own error
    check_pixels(content, limits)
    return content


def check_pixels(content: bytes, limits: Limits) -> None:
    """Refuse an image of too many pixels before it is decoded; ignores other content."""
    try:
        Image: Any = importlib.import_module("PIL.Image")
    except ModuleNotFoundError:  # then the release cannot decode it either
        return
    try:
        with Image.open(io.BytesIO(content)) as image:
            width, height = image.size
    except Image.DecompressionBombError:
        raise Refused("it has too many pixels") from None
    except Exception:
        return
    if width * height > limits.pixels:
        raise Refused(f"it has {width} x {height} pixels")
