"""The scenario ``streamed``: a release's streamed text equals its tokens decoded at once."""

import importlib
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ..core.packages import package_of
from ..evidence.words import GREEN, RED
from . import Cell, engine
from .tokenizers import ADDED, KINDS, SPECIAL, TEKKEN, vocabulary, write

TEXTS = (
    "hello the world, it is. the answer!= you ... isn't it ?",
    "café naïve été: ñandú, Größe, 漢字かな, 한국어, 👩‍👩‍👧 🙂!",
    "hello\n\n  the\tworld\n  answer ",
    "<0x41> <tool> ▁ Ġ",
)
# How many ids beyond a tokenizer's last one are tried, since models may pad their vocabulary.
PADDED = 3
Tokens = list[int]
Decode = Callable[[Tokens], str]
Stream = Callable[[Tokens], str]
# The replacement character for invalid bytes.
CUT = "\ufffd"


def cells(distribution: str, patched: bool) -> Iterator[tuple[str, Cell]]:
    right: Decode | None = None
    for name, kind in KINDS.items():
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder), kind)
            tokenizer = load_tokenizer(distribution, Path(folder))
        # The first kind's decoder suits the vocabulary of the last, whose own decoder is wrong.
        right = right or tokenizer.decode
        decode = right if name == TEKKEN else tokenizer.decode
        ways = dict(streams(distribution, tokenizer))
        for sort, tokens in sorts(vocabulary(kind), tokenizer, decode).items():
            yield f"{name} {sort}", cell(decode, ways, tokens)


def sorts(names: Sequence[str], tokenizer: Any, decode: Decode) -> dict[str, list[Tokens]]:
    """Sequences of tokens, by what is special about them."""

    def encode(text: str) -> Tokens:
        return list(tokenizer.encode(text, add_special_tokens=False))

    before, after = encode("a the"), encode(" world")

    def between(token: int) -> Tokens:
        return [*before, token, *after]

    own = [number for number, name in enumerate(names) if name not in (*SPECIAL, *ADDED)]
    cut = [one for one in own if CUT in decode(between(one))]
    emoji = encode("\U0001f642")
    return {
        "texts": [encode(text) for text in TEXTS],
        "leading space": [encode(" the world"), encode("  hello")],
        "tokens": [between(one) for one in own if one not in cut],
        "special tokens": [between(names.index(one)) for one in SPECIAL],
        "added tokens": [between(names.index(one)) for one in ADDED],
        "padded ids": [between(len(names) + one) for one in range(PADDED)],
        "cut characters": [
            *map(between, cut),
            *([*before, one] for one in cut),
            *([*before, *emoji[:end], *after] for end in range(1, len(emoji))),
            *([*before, *emoji[:end]] for end in range(1, len(emoji))),
        ],
    }


def cell(decode: Decode, ways: dict[str, Stream], all_tokens: list[Tokens]) -> Cell:
    """Red at the first sequence that is streamed differently, or not at all."""
    wrong = [fault for tokens in all_tokens if (fault := difference(decode, ways, tokens))]
    tried = f"{len(all_tokens)} sequences"
    if wrong:
        return Cell(RED, f"{len(wrong)} of {tried}: {wrong[0]}", float(len(wrong)))
    return Cell(GREEN, tried, 0.0)


def difference(decode: Decode, ways: dict[str, Stream], tokens: Tokens) -> str:
    """How the streamed text of a sequence differs from its decoded text; empty if equal."""
    wanted = whole(decode(tokens))
    for way, stream in ways.items():
        try:
            got = repr(whole(stream(tokens)))
        except Exception as error:
            got = engine.where(error)
        if got != repr(wanted):
            return f"{way}: {wanted!r} is streamed as {got}"
    return ""


def whole(text: str) -> str:
    """A text without a truncated character at its end; each other run becomes one mark."""
    return re.sub(f"{CUT}+", CUT, text).rstrip(CUT)


def load_tokenizer(distribution: str, folder: Path) -> Any:
    utils = importlib.import_module(f"{package_of(distribution)}.tokenizer_utils")
    load = getattr(utils, "load", None) or utils.load_tokenizer
    return load(folder)


def streams(distribution: str, tokenizer: Any) -> Iterator[tuple[str, Stream]]:
    def segments(tokens: Tokens) -> str:
        detokenizer, text = tokenizer.detokenizer, ""
        detokenizer.reset()
        for token in tokens:
            detokenizer.add_token(token)
            text += detokenizer.last_segment
        detokenizer.finalize()
        return text + str(detokenizer.last_segment)

    yield "generation", segments
    utils = importlib.import_module(f"{package_of(distribution)}.tokenizer_utils")
    streamer = getattr(utils, "_ServerTokenStreamer", None)
    if streamer is not None:

        def stream(tokens: Tokens) -> str:
            own = streamer(tokenizer, utils.make_streaming_detokenizer(tokenizer))
            return "".join([own.advance(token, None) for token in tokens] + [own.finalize()])

        yield "server", stream
