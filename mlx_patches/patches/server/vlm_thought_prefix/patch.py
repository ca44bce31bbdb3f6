"""mlx_vlm.server drops letters of a thought: "got it" becomes "it".

Why: Text before ``<channel|>`` is the model's thought. The release removes a leading word "thought"
    with ``lstrip("thought")``, which removes every leading t, h, o, u and g. A thought that starts
    with "the", "to", "got" or "though" silently loses letters. In the streams of mlx-vlm 0.5, a
    text that arrives together with a thought's marker, such as its last word, is lost.
How: The patch removes the word itself first, and puts a line break in front: ``lstrip`` then
    removes nothing, and the release strips the line break. In a stream, a marker is a token of its
    own; the text after it moves to the next tokens.
Upstream: Reported as mlx-vlm #1934. Fixed in mlx-vlm 0.7.10 (#2203), in streams in mlx-vlm 0.6.0.
Retire when: No supported release uses ``lstrip("thought")``.
"""

import re
from collections.abc import Iterable, Iterator
from copy import copy
from typing import Any

from ....core.verbs import Patch, argument, result
from ..._shared.vlm_tokens import Tokens

_WORD = "thought"
_MARKER = re.compile(r"(</?think>|<\|channel>thought|<channel\|>)")


def cut_word(reasoning: str, start_marker: str) -> str:
    """A thought that ``lstrip`` cannot damage; unchanged if its marker does not end in the word."""
    if not start_marker.endswith(_WORD):
        return reasoning
    return "\n" + reasoning.replace(start_marker, "").removeprefix(_WORD)


def note_stream(built: Any, request: Any) -> Any:
    """The generation arguments of a request; a streamed one is marked."""
    built.streamed = bool(getattr(request, "stream", False))
    return built


def part_markers(answer: tuple[Any, Any], args: Any) -> tuple[Any, Any]:
    """The context of a request and its tokens; in a stream, the markers of thoughts are apart."""
    if not getattr(args, "streamed", False):
        return answer
    return answer[0], Tokens(answer[1], split_at_markers(answer[1]))


def split_at_markers(tokens: Iterable[Any]) -> Iterator[Any]:
    """Yield tokens whose text is a marker or has none."""
    held: list[str] = []
    for token in tokens:
        for text in filter(None, _MARKER.split(token.text)):
            if held and not _MARKER.match(held[-1]) and not _MARKER.match(text):
                text = held.pop() + text
            held.append(text)
        while token.finish_reason and len(held) > 1:  # the answer has no further token
            part = copy(token)
            part.text, part.finish_reason = held.pop(0), None
            yield part
        token.text = held.pop(0) if held else ""
        yield token


PATCH = Patch(
    id="vlm-thought-prefix",
    targets=(
        *argument("mlx_vlm.server.responses_state:_clean_reasoning", "reasoning", cut_word),
        *result("mlx_vlm.server:ResponseGenerator.generate", part_markers),
        *result("mlx_vlm.server:_build_gen_args", note_stream, supports=True),
    ),
)
