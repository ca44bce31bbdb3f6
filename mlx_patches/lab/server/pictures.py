"""Pictures of one colour, each of which the model with images reads as a context word.

A prompt has the word between the image's markers, so that its tokens are those that are read.
"""

from __future__ import annotations

import base64
import math
import re
import struct
import zlib

from .oracle import CONTEXT, END, START

# The words of a red, a green and a blue picture.
WORDS = CONTEXT[3:6]
# The picture's side: one token.
SIDE = 28
# The width of the vision tower, and what its norm makes of a pure colour.
TOWER = 32
NORM = math.sqrt(TOWER)


def spell(*colours: int) -> str:
    """Pictures in a prompt."""
    return " ".join(f"{START}{WORDS[colour]}{END}" for colour in colours)


def split(text: str) -> tuple[list[str], str]:
    """The addresses of a text's pictures, and the rest of it."""
    *words, rest = re.split(f"{re.escape(START)}(.*?){re.escape(END)} ?", text)
    return [draw(WORDS.index(word)) for word in words[1::2]], rest


def draw(colour: int) -> str:
    """The address of a picture, a PNG."""
    pixel = bytes(255 * (one == colour) for one in range(3))
    rows = (b"\0" + pixel * SIDE) * SIDE
    head = struct.pack(">IIBBBBB", SIDE, SIDE, 8, 2, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(one) - 4) + one + struct.pack(">I", zlib.crc32(one))
        for one in (b"IHDR" + head, b"IDAT" + zlib.compress(rows), b"IEND")
    )
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"
