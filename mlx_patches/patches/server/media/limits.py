"""Limits for the images, audio and videos of a request, as plain functions.

A request may contain a URL whose response never ends, or an image that decodes to a terabyte.
Nothing here depends on a release; ``limited_media`` and ``public_media`` apply it to releases.
"""

from __future__ import annotations

import base64
import binascii
import importlib
import io
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, TypeVar

from ..._shared.refusals import Refused

MEBIBYTE = 2**20
_PIECE = 2**16

Answer = TypeVar("Answer")


class Limits(NamedTuple):
    """The limits for one file.

    Args:
        size: in bytes, both as sent and after HTTP's decompression.
        seconds: from the first look-up of the host's name to the end of the file.
        pixels: width times height of an image.
    """

    size: int
    seconds: float
    pixels: int = 178_956_970  # Pillow's own limit, unless the host switched it off


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
        self._lock = threading.Lock()
        self._stop: Callable[[], object] | None = None

    def on_expiry(self, stop: Callable[[], object] | None) -> None:
        """Set a function that ends the job's wait; it is called at once if the time is over."""
        with self._lock:
            self._stop = stop
            over = self._over.is_set()
        if over and stop is not None:
            stop()

    def expire(self) -> None:
        """Declare the time over, and end the job's wait."""
        with self._lock:
            self._over.set()
            stop = self._stop
        if stop is not None:
            stop()

    def check(self) -> None:
        """End the job if its caller no longer waits for it.

        Raises:
            Refused: the time is over.
        """
        if self._over.is_set():
            raise Refused("it took too long")


def within(seconds: float, job: Callable[[Expiry], Answer]) -> Answer:
    """Run a job in a thread, with a time limit: name look-ups and slow headers have no other.

    Raises:
        Refused: the time is over; the job's thread ends at its next check of the expiry.
    """
    expiry = Expiry()
    answer: SimpleQueue[tuple[Answer | None, BaseException | None]] = SimpleQueue()

    def run() -> None:
        try:
            answer.put((job(expiry), None))
        except BaseException as error:
            answer.put((None, error))

    threading.Thread(target=run, name="mlx_patches-fetch", daemon=True).start()
    try:
        result, error = answer.get(timeout=seconds)
    except Empty:
        expiry.expire()
        raise Refused(f"it took longer than {seconds:g} s") from None
    if error is not None:
        try:
            raise error
        finally:
            del error  # its traceback references this frame
    return result  # type: ignore[return-value]


def read_limited(read: Callable[[int], bytes], limits: Limits, expiry: Expiry) -> bytes:
    """Read a stream to its end.

    Args:
        read: returns at most the given number of bytes, as soon as there are any; none at the end.
        limits: only the size is used.
        expiry: checked after each piece.

    Raises:
        Refused: the content is too large, or the time is over.
        TypeError: a piece is not bytes: the stand-in of a test, which may never end.
    """
    pieces, size = [], 0
    while piece := read(_PIECE):
        if not isinstance(piece, bytes):
            raise TypeError(f"a response's stream gave a {type(piece).__name__}")
        expiry.check()
        size += len(piece)
        if size > limits.size:
            raise Refused(f"it is larger than {limits.size // MEBIBYTE} MiB")
        pieces.append(piece)
    return b"".join(pieces)


def check_length(length: str | None, limits: Limits) -> None:
    """Check a response's ``Content-Length`` before any of it is read.

    Raises:
        Refused: it is larger than the limit.
    """
    if length is not None and length.strip().isdecimal() and int(length) > limits.size:
        raise Refused(f"it is larger than {limits.size // MEBIBYTE} MiB")


def check_data_url(url: str, limits: Limits) -> bytes:
    """Check an image that is in the request itself; returns it, nothing if it is not base64.

    Raises:
        Refused: it is over a limit, in bytes or in pixels.
    """
    data = url.partition(",")[2]
    if len(data) > (limits.size + 2) // 3 * 4 * 1.1:  # a tenth more, for line breaks
        raise Refused(f"it is larger than {limits.size // MEBIBYTE} MiB")
    try:
        content = base64.b64decode(data)
    except (binascii.Error, ValueError):
        return b""  # the release raises its own error
    check_pixels(content, limits)
    return content


def check_pixels(content: bytes, limits: Limits) -> None:
    """Check an image's size before it is decoded. Other content is left to the release.

    Raises:
        Refused: the image has too many pixels.
    """
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
