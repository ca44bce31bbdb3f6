"""The sections of an answer of mlx-vlm's server: thinking, or tool calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# The texts around thinking, besides those of a request.
_THINKING = (("<think>", "</think>"), ("<|channel>thought", "<channel|>"))


class Sections:
    """Finds the tokens of an answer that belong to a section.

    ``markers``: the texts around one. A section may begin at the end of the prompt.
    """

    def __init__(self, markers: Sequence[tuple[str, str]], prompt: str):
        self._markers = markers
        begun = prompt.rstrip()
        self._end = next((end for start, end in markers if begun.endswith(start)), "")
        self._text = ""

    def has(self, token: Any) -> bool:
        """Whether the next token of the answer belongs to a section."""
        self._text += token.text
        inside = bool(self._end)
        for start, end in () if inside else self._markers:
            if start in self._text:
                self._text = self._text.partition(start)[2]
                self._end, inside = end, True
                break
        if self._end and self._end in self._text:
            self._text = self._text.partition(self._end)[2]
            self._end = ""
        longest = len(self._end) or max(len(start) for start, _ in self._markers)
        self._text = self._text[-longest:]
        return inside


def find_thinking(args: Any) -> list[tuple[str, str]]:
    """The texts around thinking in the answer to a request."""
    own = tuple(getattr(args, f"thinking_{side}_token", None) for side in ("start", "end"))
    return [*([own] if all(own) else []), *_THINKING]  # type: ignore[list-item]
