"""Tiny tokenizers of the kinds that released models have, generated and written as a folder."""

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

# The letters of bytes in byte-level vocabularies, by byte: printable ones stay, as in GPT-2.
_SHIFTED = itertools.count(256)
LETTERS = [
    chr(byte if chr(byte).isprintable() and byte != 32 else next(_SHIFTED)) for byte in range(256)
]
SPACE = "\u2581"
EOS = "</s>"
# The tokens of images and videos in prompts.
IMAGE, VIDEO, START, END = "<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"
SPECIAL = (EOS, "<|im_end|>", "<\uff5cend\u2581of\u2581sentence\uff5c>", IMAGE, VIDEO, START, END)
# Tokens added to a vocabulary that are not special: they may contain any character.
ADDED = ("<think>", "<\uff5ctool\u2581sep\uff5c>", "    ")
_WORDS = ("hello", "the", "world", "answer", "it", "is", "café", "naïve", "you", "ing", "...", "!=")
WORDS = tuple(before + word for word in _WORDS for before in ("", " "))
_STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
_PIECES: list[dict[str, Any]] = [
    {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
    {"type": "ByteFallback"},
    {"type": "Fuse"},
]
_CHARACTERS = [
    *(f"<0x{byte:02X}>" for byte in range(256)),
    SPACE,
    *(chr(code) for code in range(ord("!"), ord("~") + 1)),
    *"éï",
]
_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}


def spell_bytes(text: str) -> str:
    return "".join(LETTERS[byte] for byte in text.encode())


class Kind(NamedTuple):
    """A kind of tokenizer.

    Args:
        decoder: the decoder in tokenizer.json.
        by_bytes: the vocabulary is of bytes; if not, of characters, with bytes for missing ones.
        settings: the fields of tokenizer_config.json.
        single: the tokens of which the words are made.
        words: the words and their beginnings are tokens.
        added: further tokens, which are not special.
    """

    decoder: Mapping[str, Any]
    by_bytes: bool = True
    settings: Mapping[str, Any] = {}
    single: Sequence[str] = LETTERS
    words: Sequence[str] = WORDS
    added: Sequence[str] = ADDED


# Devstral Small 2: a vocabulary of bytes with the decoder of the other kind.
TEKKEN = "tekken"
KINDS = {
    "byte-level": Kind(_BYTES),
    # Llama 3.
    "cleaned byte-level": Kind(_BYTES, settings={"clean_up_tokenization_spaces": True}),
    # The packages have no faster detokenizer for this one.
    "nested byte-level": Kind({"type": "Sequence", "decoders": [_BYTES]}),
    "sentencepiece": Kind(
        {"type": "Sequence", "decoders": [*_PIECES, _STRIP]}, False, single=_CHARACTERS
    ),
    # Gemma.
    "spaced sentencepiece": Kind(
        {"type": "Sequence", "decoders": _PIECES}, False, single=_CHARACTERS
    ),
    TEKKEN: Kind({"type": "Sequence", "decoders": [*_PIECES, _STRIP]}),
}
# For a tiny model that generates text: most tokens are pairs of letters, so that a text can be
# tokenized in many ways.
_TEMPLATE = "{% for one in messages %}{{ one['content'] }}{% endfor %}"
_PAIRS = tuple(one + other for one in "abcdefgh" for other in "abcdefgh")
PAIRS = Kind(
    _BYTES,
    settings={"chat_template": _TEMPLATE},
    single=tuple("abcdefgh,.!Ġ"),
    words=_PAIRS,
    added=(),
)


def write(folder: Path, kind: Kind) -> None:
    """Write a tokenizer's files; its token ids are those of ``vocabulary``."""
    names = vocabulary(kind)
    added: list[dict[str, Any]] = [
        {"id": names.index(text), "content": text, "special": text in SPECIAL, **_PLAIN}
        for text in (*SPECIAL, *kind.added)
    ]
    model = {
        "type": "BPE",
        "vocab": {name: number for number, name in enumerate(names) if name not in ADDED},
        "merges": [f"{name[:-1]} {name[-1]}" for name in names if _is_merged(name, kind)],
        "byte_fallback": not kind.by_bytes,
    }
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    strips = _STRIP in kind.decoder.get("decoders", ())
    prefix = [{"type": "Prepend", "prepend": SPACE}] if strips else []
    content = {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": None
        if kind.by_bytes
        else {"type": "Sequence", "normalizers": [*prefix, spaces]},
        "pre_tokenizer": _BYTES if kind.by_bytes else None,
        "decoder": kind.decoder,
        "model": model,
    }
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": EOS,
        "pad_token": EOS,
        "clean_up_tokenization_spaces": False,
        **kind.settings,
    }
    for name, one in (("tokenizer", content), ("tokenizer_config", settings)):
        (folder / f"{name}.json").write_text(json.dumps(one))


_PLAIN = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}


def vocabulary(kind: Kind) -> list[str]:
    """The tokens of a kind by id, spelled like in its tokenizer.json."""
    if kind.by_bytes:
        words = [spell_bytes(word) for word in kind.words]
    else:
        words = [word.replace(" ", SPACE) for word in kind.words]
    starts = [word[:end] for word in words for end in range(2, len(word) + 1)]
    return [*SPECIAL, *dict.fromkeys([*kind.single, *starts]), *kind.added]


def _is_merged(name: str, kind: Kind) -> bool:
    """Whether a token is a shorter token plus one character."""
    plain = name not in (*SPECIAL, *ADDED) and len(name) > 1
    return plain and (kind.by_bytes or not name.startswith("<0x"))
