"""Streams a text with a tokenizer that keeps its spaces, as newer transformers' tokenizers do."""

from collections.abc import Sequence
from typing import Any

from ....probes.kit import Result, Target, class_of

TEXT = "x != y, a . b"


class Tokenizer:
    """One token per character. Its config always sets clean-up."""

    clean_up_tokenization_spaces = True

    def __init__(self, cleaning: bool = False):
        self.cleaning = cleaning
        letters = [chr(n) for n in range(33, 127)]
        self.letters = [*letters, "Ġ"]  # a space, in byte-level BPE
        self.vocab = {letter: n for n, letter in enumerate(self.letters)}

    def __len__(self) -> int:
        return len(self.letters)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [self.vocab[letter] for letter in text.replace(" ", "Ġ")]

    def decode(self, tokens: Sequence[int]) -> str:
        text = "".join(self.letters[token] for token in tokens).replace("Ġ", " ")
        if self.cleaning:
            for mark in ".?!,":
                text = text.replace(f" {mark}", mark)
        return text

    def convert_ids_to_tokens(self, tokens: Sequence[int]) -> list[str]:
        return [self.letters[token] for token in tokens]


def stream(kind: Any, tokenizer: Any, text: str) -> str:
    detokenizer, streamed = kind(tokenizer), ""
    for token in tokenizer.encode(text):
        detokenizer.add_token(token)
        streamed += detokenizer.last_segment
    detokenizer.finalize()
    return streamed + str(detokenizer.last_segment)


def probe(target: Target) -> Result:
    """Red if the streamed text differs from the decoded text."""
    kind = class_of(target)
    tokenizer = Tokenizer()
    streamed, decoded = stream(kind, tokenizer, TEXT), tokenizer.decode(tokenizer.encode(TEXT))
    return Result(streamed != decoded, f"{decoded!r} is streamed as {streamed!r}")
