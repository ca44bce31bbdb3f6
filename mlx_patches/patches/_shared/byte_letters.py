"""The letters that stand for bytes in byte-level vocabularies."""

_PRINTABLE = {*range(33, 127), *range(161, 173), *range(174, 256)}
_OTHERS = iter(range(256, 512))
# By byte.
LETTERS = [chr(byte if byte in _PRINTABLE else next(_OTHERS)) for byte in range(256)]


def spell_bytes(text: str) -> str:
    return "".join(LETTERS[byte] for byte in text.encode())
