"""Streamed text differs from its tokens, or a token ends the request, or the server, with an error.

Why
    The detokenizers of mlx-lm and mlx-vlm promise the text that the tokenizer decodes at once.
    They differ from it:

    - An id that the tokenizer does not have, of a model whose vocabulary is padded, raises an
      IndexError, or is streamed as "!".
    - mlx-vlm raises a KeyError after an added token with a letter that stands for no byte, as the
      full-width bar in DeepSeek's, and up to 0.6.8 a UnicodeDecodeError at bytes that are no
      character. What it shows up to 0.3.9 for the bytes of a sentencepiece vocabulary is not
      repaired.
    - The text's first space is lost: by mlx-lm for byte-level vocabularies; by both where a
      decoder removes one space, and the text begins with two. A completion then runs into its
      prompt.
    - The detokenizer is chosen by the tokenizer's decoder. Devstral Small 2 has another decoder
      than its vocabulary needs: "Hello!ĠHow".
    - mlx-vlm loses the last word if the answer ends within a character, and its server puts bytes
      that are no character behind the tokens that follow.
    - mlx-lm streams NUL as "Ā".
How
    The release's code runs on right state: added tokens are spelled in the letters of bytes, a
    byte-level vocabulary has the byte-level detokenizer, a space that will be removed waits for
    the text after it. Ids without a token add nothing, as when they are decoded.
Upstream
    mlx-lm 1041, 1329, 1754, not fixed in 0.32.2; mlx-vlm 1665, 1705 (0.6.9), 1771; omlx 2013.
Retire when
    The lab's scenario ``streamed`` is green for every supported release.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from ....core.patch import Patch, Target, around
from ..._shared.byte_letters import LETTERS, spell_bytes

SPACE = "\u2581"
# mlx-lm holds bytes.
SPACES = frozenset({SPACE, SPACE.encode()})
CUT = "\ufffd"
NUL, BYTE_SPACE = LETTERS[0], LETTERS[ord(" ")]


def is_unknown(detokenizer: Any, token: int, *args: Any, **kwargs: Any) -> bool:
    """Whether the tokenizer has no token of an id."""
    words = detokenizer.tokenmap
    return token >= len(words) or not words[token]


def begin_by_vocabulary(
    begin: Callable[..., None], detokenizer: Any, tokenizer: Any, *args: Any, **kwargs: Any
) -> None:
    """Construct a detokenizer; one for a byte-level vocabulary if the tokenizer's is one."""
    if is_byte_level(tokenizer):
        utils = sys.modules[type(detokenizer).__module__]
        detokenizer.__class__ = utils.BPEStreamingDetokenizer
        detokenizer.__init__(tokenizer)
    else:
        begin(detokenizer, tokenizer, *args, **kwargs)


def is_byte_level(tokenizer: Any) -> bool:
    """Whether a vocabulary has the letters of bytes, and none of the other kind's signs."""
    missing = (None, tokenizer.unk_token_id)
    letters = tokenizer.convert_tokens_to_ids([BYTE_SPACE, LETTERS[ord("\n")]])
    signs = tokenizer.convert_tokens_to_ids([SPACE, "<0x0A>"])
    return not any(one in missing for one in letters) and all(one in missing for one in signs)


# mlx-lm


def added(add_token: Callable[..., None], detokenizer: Any, token: int) -> None:
    """Add a token; an unknown one has no text."""
    if is_unknown(detokenizer, token):
        detokenizer.tokens.append(token)
    else:
        add_token(detokenizer, token)


def decoded(decode: Callable[..., str], detokenizer: Any, letters: str) -> str:
    """The text of letters. The release decodes what stands for no byte as itself."""
    return decode(detokenizer, letters.replace(NUL, "\0"))


def has_nul(detokenizer: Any, letters: str) -> bool:
    """Whether one of the letters stands for NUL."""
    return NUL in letters


def trimmed(trim: Callable[..., str], detokenizer: Any, text: str) -> str:
    """A text with its first space, unless the tokenizer removes it before the next character."""
    cleans = getattr(detokenizer, "clean_spaces", False)
    if detokenizer.text or (cleans and text[1:].startswith(detokenizer._space_matches)):
        return trim(detokenizer, text)
    return text


def is_at_start(detokenizer: Any, *args: Any, **kwargs: Any) -> bool:
    """Whether no text was streamed yet."""
    return not detokenizer.text


def flushed(flush: Callable[..., None], detokenizer: Any, *args: Any, **kwargs: Any) -> None:
    """Add what is held to the text, unless it is the space that is removed from its start."""
    if not holds_first_space(detokenizer):
        flush(detokenizer, *args, **kwargs)


def holds_first_space(detokenizer: Any, *args: Any, **kwargs: Any) -> bool:
    """Whether a space is held that is removed from the text's start, and nothing else."""
    if detokenizer._unflushed not in SPACES:
        return False
    return detokenizer.trim_space and not detokenizer.text


# mlx-vlm


def begin_spelled(
    begin: Callable[..., None], detokenizer: Any, tokenizer: Any, *args: Any, **kwargs: Any
) -> None:
    """Construct a detokenizer whose tokens all consist of the letters of bytes."""
    begin(detokenizer, tokenizer, *args, **kwargs)
    for word, token in tokenizer.get_added_vocab().items():
        if not detokenizer._byte_decoder.keys() >= set(word):
            detokenizer.tokenmap[token] = spell_bytes(word)


def added_letters(
    add_token: Callable[..., None], detokenizer: Any, token: int, *args: Any, **kwargs: Any
) -> None:
    """Add a token to those of a byte-level vocabulary."""
    if not is_unknown(detokenizer, token):
        without_error(add_token, detokenizer, token, *args, **kwargs)


def without_error(
    advance: Callable[..., None], detokenizer: Any, *args: Any, **kwargs: Any
) -> None:
    """Advance; bytes that are no character become the sign for that."""
    try:
        advance(detokenizer, *args, **kwargs)
    except UnicodeDecodeError:
        held = bytes(map(LETTERS.index, detokenizer._unflushed))
        detokenizer._unflushed = spell_bytes(held.decode("utf-8", "replace"))
        advance(detokenizer, *args, **kwargs)


def may_raise(detokenizer: Any, token: int, *args: Any, **kwargs: Any) -> bool:
    """Whether a token is unknown, or ends a word of other bytes than ASCII."""
    if is_unknown(detokenizer, token):
        return True
    begins = detokenizer.tokenmap[token][0] == BYTE_SPACE
    return begins and not detokenizer._unflushed.lstrip(BYTE_SPACE).isascii()


def added_pieces(
    add_token: Callable[..., None], detokenizer: Any, token: int, *args: Any, **kwargs: Any
) -> None:
    """Add a token; the space that is removed from the text's start waits for it."""
    if is_unknown(detokenizer, token):
        return
    # mlx-vlm up to 0.3.9 has no buffer.
    waits = holds_first_space(detokenizer) and not getattr(detokenizer, "_byte_buffer", b"")
    add_token(detokenizer, token, *args, **kwargs)
    if waits and detokenizer._unflushed == detokenizer.tokenmap[token]:
        detokenizer._unflushed = SPACE + detokenizer._unflushed


def may_wait(detokenizer: Any, token: int, *args: Any, **kwargs: Any) -> bool:
    """Whether a token is unknown, or comes after a space that waits."""
    return is_unknown(detokenizer, token) or holds_first_space(detokenizer)


def ended(finalize: Callable[..., None], detokenizer: Any) -> None:
    """End the text, without a cut character: the release streams no segment that ends in one."""
    without_error(finalize, detokenizer)
    if hasattr(detokenizer, "_text"):  # of which ``text`` is made
        detokenizer._text = detokenizer._text.rstrip(CUT)
    else:
        detokenizer.text = detokenizer.text.rstrip(CUT)


def emitted(emit: Callable[..., str], streamer: Any, text: str) -> str:
    """A text to be sent. Only the first one loses a space, also if nothing is left of it."""
    sent = emit(streamer, text)
    streamer._started = streamer._started or bool(text)
    return sent


def is_not_started(streamer: Any, text: str) -> bool:
    """Whether a server's stream has sent nothing yet."""
    return not streamer._started


def complete_text(tell: Callable[..., str], streamer: Any, token: int) -> str:
    """A token's text, behind the bytes that are held, if the token does not complete them."""
    held = streamer._decoder.decode(b"", final=True) if cuts(streamer, token) else ""
    return str(held) + tell(streamer, token)


def cuts(streamer: Any, token: int) -> bool:
    """Whether bytes are held, and a token is not one byte more."""
    return bool(streamer._decoder.buffer) and True not in streamer._is_byte_token[token : token + 1]


def _targets(distribution: str, *changes: tuple[str, Any, Any]) -> tuple[Target, ...]:
    module = f"{distribution.replace('-', '_')}.tokenizer_utils"
    return tuple(
        Target(distribution, module, name, around(wrapper), when=when)
        for name, wrapper, when in changes
    )


_BYTES, _PIECES = "BPEStreamingDetokenizer", "SPMStreamingDetokenizer"
_SERVER = "_ServerTokenStreamer"
PATCH = Patch(
    id="detokenizer-text",
    every_model=True,
    summary="mlx-lm and mlx-vlm: streamed text differs from its tokens, or crashes ('Hello!ĠHow')",
    targets=(
        *_targets(
            "mlx-lm",
            (f"{_BYTES}.add_token", added, is_unknown),
            (f"{_BYTES}._decode_bytes", decoded, has_nul),
            (f"{_BYTES}._maybe_trim_space", trimmed, is_at_start),
            (f"{_PIECES}.__init__", begin_by_vocabulary, None),
            (f"{_PIECES}.add_token", added, is_unknown),
            (f"{_PIECES}._try_flush", flushed, holds_first_space),
        ),
        *_targets(
            "mlx-vlm",
            (f"{_BYTES}.__init__", begin_spelled, None),
            (f"{_BYTES}.add_token", added_letters, may_raise),
            (f"{_BYTES}.finalize", ended, None),
            (f"{_PIECES}.__init__", begin_by_vocabulary, None),
            (f"{_PIECES}.add_token", added_pieces, may_wait),
            (f"{_PIECES}.finalize", ended, None),
            ("NaiveStreamingDetokenizer.finalize", ended, None),
            (f"{_SERVER}._emit_text", emitted, is_not_started),
            (f"{_SERVER}._spm_text_for_token", complete_text, cuts),
        ),
    ),
)
