"""The media in a file, by the first bytes of its container.

Audio and video readers (FFmpeg) detect a file's format themselves. Many formats are text that lists
other files and URLs, which the reader opens: HLS, DASH, concat, SDP. So only containers that hold
their own data are accepted, whatever a file's name or MIME type is.

A refusal is the exception ``Refused``.
"""

import io
import re
from typing import BinaryIO, NamedTuple

from ..._shared.refusals import Refused
from .limits import IMAGE, MEDIA, Limits

_HEAD = 2**20  # as much as FFmpeg looks at
_TAGS = 8
# FFmpeg takes a file for a playlist if it has one of these before the first NUL.
_LIST = re.compile(rb"<mpd|<compositionplaylist", re.IGNORECASE)


class Kind(NamedTuple):
    """A kind of media: its name in messages, its limits, and the first bytes of its containers."""

    name: str
    limits: Limits
    magic: re.Pattern[bytes]


def _kind(name: str, limits: Limits, *magic: bytes) -> Kind:
    return Kind(name, limits, re.compile(b"|".join(magic), re.DOTALL))


_MP4 = rb"....ftyp"
_MATROSKA = rb"\x1aE\xdf\xa3.{1,64}?\x42\x82.{1,8}?(?:webm|matroska)"
PICTURE = _kind(
    "an image in PNG, JPEG, GIF, WebP, BMP, TIFF, AVIF, HEIF or JPEG 2000",
    IMAGE,
    rb"\x89PNG\r\n\x1a\n|\xff\xd8\xff|GIF8[79]a|BM|II\*\0|MM\0\*|RIFF....WEBP",  # TIFF: II, MM
    rb"....ftyp(?:avi[fs]|hei[cxms]|hev[cx]|mif1|msf1)",
    rb"\0\0\0\x0cjP  \r\n\x87\n|\xff\x4f\xff\x51",  # JPEG 2000
)
SOUND = _kind(
    "audio in WAV, AIFF, FLAC, Ogg, CAF, MP3, AAC, MP4, WebM or Matroska",
    MEDIA,
    rb"(?:RIFF|RF64)....WAVE|FORM....AIF[FC]|fLaC|OggS\0|caff\0",
    rb"\xff[\xe2-\xe5\xf2-\xf5\xfa-\xfd]|\xff[\xf0\xf1\xf8\xf9]",  # MP3 without a tag, AAC
    _MP4,
    _MATROSKA,
)
VIDEO = _kind("a video in MP4, WebM, Matroska or AVI", MEDIA, _MP4, _MATROSKA, rb"RIFF....AVI LIST")


def check_kind(content: bytes | BinaryIO, kind: Kind) -> None:
    """Refuse a file in no container of a kind; an open file stays at its position."""
    file = io.BytesIO(content) if isinstance(content, bytes) else content
    position = file.tell()
    try:
        start = 0
        for _ in range(_TAGS):
            file.seek(start)
            head = file.read(_HEAD)
            if _LIST.search(head.partition(b"\0")[0]):
                break
            if kind.magic.match(head):
                return
            if kind is not SOUND or head[:3] != b"ID3" or len(head) < 10:
                break
            start = _tag_end(start, head, file)
    finally:
        file.seek(position)
    raise Refused(f"it is not {kind.name}")


def _tag_end(start: int, head: bytes, file: BinaryIO) -> int:
    """Where the bytes after an ID3 tag and its padding begin: readers skip both."""
    size = 0
    for byte in head[6:10]:
        size = size << 7 | byte & 0x7F
    end = start + 10 + size + (10 if head[5] & 0x10 else 0)
    file.seek(end)
    block = file.read(2**16)
    return end + len(block) - len(block.lstrip(b"\0"))
