"""What a server takes of the images, sounds and videos that a request names: plain functions.

A request may name a URL whose answer never ends, or an image of a terabyte when it is decoded.
Nothing here knows a release; ``media_requests`` puts it in front of theirs.
"""

from __future__ import annotations

import base64
import binascii
import importlib
import io
import logging
import threading
from collections.abc import Callable
from pathlib import PurePath
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, TypeVar

from ...core.errors import refusal

logger = logging.getLogger("mlx_patches")

MEBIBYTE = 2**20
_PIECE = 2**16
# How much of a source an error or a log line shows.
_SHOWN = 120

Answer = TypeVar("Answer")


class Limits(NamedTuple):
    """What one file may cost.

    Args:
        size: in bytes, as it is sent and as it is unpacked by HTTP.
        seconds: until it is there, from the first look-up of the host's name.
        pixels: width times height of an image.
    """

    size: int
    seconds: float
    pixels: int = 178_956_970  # where Pillow refuses, unless the host switched that off


# No camera makes more; an hour of sound without compression, or a clip, is more.
IMAGE = Limits(64 * MEBIBYTE, 60.0)
MEDIA = Limits(512 * MEBIBYTE, 300.0)


class Refused(Exception):
    """Why something is not taken. ``private`` is for the log alone: what a client may not learn."""

    def __init__(self, reason: str, private: str = ""):
        super().__init__(reason)
        self.private = private


class Fetched(NamedTuple):
    """A file that was fetched, and the type that its server gave."""

    content: bytes
    mime: str


class Expiry:
    """Whether a job's time is over; ``stop`` is called when it is."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._stop: Callable[[], object] | None = None

    def on_expiry(self, stop: Callable[[], object] | None) -> None:
        """What ends the job's wait from another thread; called at once where it is too late."""
        with self._lock:
            self._stop = stop
            over = self._over.is_set()
        if over and stop is not None:
            stop()

    def expire(self) -> None:
        """The time is over."""
        with self._lock:
            self._over.set()
            stop = self._stop
        if stop is not None:
            stop()

    def check(self) -> None:
        """End the job where nobody waits for it any more.

        Raises:
            Refused: the time is over.
        """
        if self._over.is_set():
            raise Refused("it took too long")


def within(seconds: float, job: Callable[[Expiry], Answer]) -> Answer:
    """A job's answer, or none: a look-up or a header that comes byte by byte has no other limit.

    Raises:
        Refused: the time is over; the job's thread ends when it next looks at its expiry.
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
            del error  # its traceback holds this frame
    return result  # type: ignore[return-value]


def read_limited(read: Callable[[int], bytes], limits: Limits, expiry: Expiry) -> bytes:
    """All that a stream gives.

    Args:
        read: gives at most so many bytes, as soon as there are any; nothing at the end.
        limits: its size counts.
        expiry: looked at after each piece.

    Raises:
        Refused: there is more than may be, or it is too late.
    """
    pieces, size = [], 0
    while piece := read(_PIECE):
        expiry.check()
        size += len(piece)
        if size > limits.size:
            raise Refused(f"it is larger than {limits.size // MEBIBYTE} MiB")
        pieces.append(piece)
    return b"".join(pieces)


def check_length(length: str | None, limits: Limits) -> None:
    """Look at what an answer says of its own length, before any of it is read.

    Raises:
        Refused: it is more than may be.
    """
    if length is not None and length.strip().isdecimal() and int(length) > limits.size:
        raise Refused(f"it is larger than {limits.size // MEBIBYTE} MiB")


def check_data_url(url: str, limits: Limits) -> None:
    """Look at an image that came with the request.

    Raises:
        Refused: it is larger than may be, in bytes or in pixels.
    """
    data = url.partition(",")[2]
    if len(data) > (limits.size + 2) // 3 * 4 * 1.1:  # line breaks count a little
        raise Refused(f"it is larger than {limits.size // MEBIBYTE} MiB")
    try:
        content = base64.b64decode(data)
    except (binascii.Error, ValueError):
        return  # the release says so in its own words
    check_pixels(content, limits)


def check_pixels(content: bytes, limits: Limits) -> None:
    """Look at an image's size before it is decoded. What is no image the release refuses itself.

    Raises:
        Refused: it has more pixels than may be.
    """
    try:
        Image: Any = importlib.import_module("PIL.Image")
    except ModuleNotFoundError:  # nor can the release decode it
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


def as_refusal(source: Any, error: Refused) -> Exception:
    """The error that a host gets and hands to its client; the log says more."""
    more = f" ({error.private})" if error.private else ""
    logger.warning("mlx_patches: refused %s: %s%s", shown(source), error, more)
    return refusal(ValueError(f"Refused to load {shown(source)}: {error}"))


def shown(source: Any) -> str:
    """A source as a log line may have it: short, in one line, and no image in full."""
    named = isinstance(source, (str, PurePath))
    text = str(source) if named else f"a {type(source).__name__}"
    if text[:5].lower() == "data:":
        text = text.partition(",")[0][:_SHOWN] + ",..."
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")
