"""mlx-lm and mlx-vlm: streamed text differs from its tokens, or crashes ('Hello!ĠHow').

Why: The detokenizers of mlx-lm and mlx-vlm should stream the text that the tokenizer decodes. They
    differ from it:

    - An id beyond the tokenizer's vocabulary, of a model with a padded vocabulary, raises an
      IndexError, or is streamed as "!".
    - mlx-vlm raises a KeyError after an added token with a letter that stands for no byte, such as
      the full-width bar in DeepSeek's, and up to 0.6.8 a UnicodeDecodeError at invalid UTF-8. Its
      output up to 0.3.9 for the byte tokens of a sentencepiece vocabulary is not repaired.
    - The first space of the text is lost: by mlx-lm for byte-level vocabularies; by both if a
      decoder removes one space and the text begins with two. A completion then runs into its
      prompt.
    - The detokenizer is chosen by the tokenizer's decoder. Devstral Small 2 has a decoder that
      does not match its vocabulary: "Hello!ĠHow".
    - mlx-vlm loses the last word if the answer ends within a character, and its server puts
      invalid bytes after the tokens that follow them.
    - mlx-lm streams NUL as "Ā".
How: The release's code runs on corrected state: added tokens are spelled in byte letters, a
    byte-level vocabulary gets the byte-level detokenizer, a space that will be removed waits for
    the text after it. Ids without a token add no text, as in decoding.
Upstream: mlx-lm 1041, 1329, 1754, not fixed in 0.32.2; mlx-vlm 1665, 1705 (0.6.9), 1771; omlx 2013.
Retire when: The lab's scenario ``streamed`` is green for every supported release.
"""

import sys
from collections.abc import Callable
from typing import Any

from ....core.verbs import Patch, after, argument, wrap
from ..._shared.byte_letters import LETTERS, spell_bytes

SPACE = "\u2581"
# mlx-lm holds bytes.
SPACES = frozenset({SPACE, SPACE.encode()})
CUT = "\ufffd"
NUL, BYTE_SPACE = LETTERS[0], LETTERS[ord(" ")]


def is_unknown(detokenizer: Any, token: int, /) -> bool:
    """Whether the tokenizer has no token with this id."""
    words = detokenizer.tokenmap
    return token >= len(words) or not words[token]


def begin_by_vocabulary(
    begin: Callable[..., None], detokenizer: Any, tokenizer: Any, *args: Any, **kwargs: Any
) -> None:
    if is_byte_level(tokenizer):
        utils = sys.modules[type(detokenizer).__module__]
        detokenizer.__class__ = utils.BPEStreamingDetokenizer
        detokenizer.__init__(tokenizer)
    else:
        begin(detokenizer, tokenizer, *args, **kwargs)


def is_byte_level(tokenizer: Any) -> bool:
    """Whether a vocabulary has byte letters, and no sentencepiece tokens."""
    if not hasattr(tokenizer, "convert_tokens_to_ids"):  # not one of transformers
        return False
    missing = (None, tokenizer.unk_token_id)
    letters = tokenizer.convert_tokens_to_ids([BYTE_SPACE, LETTERS[ord("\n")]])
    spaces = tokenizer.convert_tokens_to_ids([SPACE, "<0x0A>"])
    return not any(one in missing for one in letters) and all(one in missing for one in spaces)


def add_unknown(add_token: Callable[..., None], detokenizer: Any, token: int) -> None:
    detokenizer.tokens.append(token)


def replace_nul(seq: str) -> str:
    """Letters to decode. The release decodes a NUL character, which is no letter, as itself."""
    return seq.replace(NUL, "\0")


def has_nul(seq: str) -> bool:
    """Whether one of the letters stands for NUL."""
    return NUL in seq


def keep_first_space(trim: Callable[..., str], detokenizer: Any, text: str) -> str:
    """A text with its first space, unless the tokenizer removes it before the next character."""
    cleans = getattr(detokenizer, "clean_spaces", False)
    if detokenizer.text or (cleans and text[1:].startswith(detokenizer._space_matches)):
        return trim(detokenizer, text)
    return text


def is_at_start(detokenizer: Any, /) -> bool:
    return not detokenizer.text


def keep_buffer(flush: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    """Add nothing to the text."""


def holds_first_space(detokenizer: Any, /) -> bool:
    """Whether the buffer is a space that is removed from the start of the text."""
    if detokenizer._unflushed not in SPACES:
        return False
    return detokenizer.trim_space and not detokenizer.text


def spell_added_tokens(detokenizer: Any, tokenizer: Any, /) -> None:
    # Not every tokenizer class has added tokens.
    for word, token in getattr(tokenizer, "get_added_vocab", dict)().items():
        if not detokenizer._byte_decoder.keys() >= set(word):
            detokenizer.tokenmap[token] = spell_bytes(word)


def add_byte_level(
    add_token: Callable[..., None], detokenizer: Any, token: int, *args: Any, **kwargs: Any
) -> None:
    if not is_unknown(detokenizer, token):
        replace_invalid(add_token, detokenizer, token, *args, **kwargs)


def replace_invalid(
    advance: Callable[..., None], detokenizer: Any, *args: Any, **kwargs: Any
) -> None:
    try:
        advance(detokenizer, *args, **kwargs)
    except UnicodeDecodeError:
        held = bytes(map(LETTERS.index, detokenizer._unflushed))
        detokenizer._unflushed = spell_bytes(held.decode("utf-8", "replace"))
        advance(detokenizer, *args, **kwargs)


def may_raise(detokenizer: Any, token: int, /) -> bool:
    if is_unknown(detokenizer, token):
        return True
    begins = detokenizer.tokenmap[token][0] == BYTE_SPACE
    return begins and not detokenizer._unflushed.lstrip(BYTE_SPACE).isascii()


def add_sentencepiece(
    add_token: Callable[..., None], detokenizer: Any, token: int, *args: Any, **kwargs: Any
) -> None:
    """Add a token; the space that is removed from the start of the text waits for it."""
    if is_unknown(detokenizer, token):
        return
    # mlx-vlm up to 0.3.9 has no buffer.
    waits = holds_first_space(detokenizer) and not getattr(detokenizer, "_byte_buffer", b"")
    add_token(detokenizer, token, *args, **kwargs)
    if waits and detokenizer._unflushed == detokenizer.tokenmap[token]:
        detokenizer._unflushed = SPACE + detokenizer._unflushed


def may_wait(detokenizer: Any, token: int, /) -> bool:
    return is_unknown(detokenizer, token) or holds_first_space(detokenizer)


def drop_cut_character(finalize: Callable[..., None], detokenizer: Any) -> None:
    """End the text without a cut character: the release streams no segment that ends in one."""
    replace_invalid(finalize, detokenizer)
    if hasattr(detokenizer, "_text"):  # ``text`` is derived from it
        detokenizer._text = detokenizer._text.rstrip(CUT)
    else:
        detokenizer.text = detokenizer.text.rstrip(CUT)


def mark_started(streamer: Any, text: str, /) -> None:
    """Mark a server's stream as started: only its first text loses a space, even if it is one."""
    streamer._started = streamer._started or bool(text)


def is_not_started(streamer: Any, /) -> bool:
    return not streamer._started


def decode_token(decode: Callable[..., str], streamer: Any, token: int) -> str:
    """A token's text, after the held bytes if the token does not continue them."""
    held = streamer._decoder.decode(b"", final=True) if cuts_character(streamer, token) else ""
    return str(held) + decode(streamer, token)


def cuts_character(streamer: Any, token: int, /) -> bool:
    """Whether bytes are held, and the token is not a byte."""
    return bool(streamer._decoder.buffer) and True not in streamer._is_byte_token[token : token + 1]


_BYTES, _PIECES = "BPEStreamingDetokenizer", "SPMStreamingDetokenizer"
_LM, _VLM = "mlx_lm.tokenizer_utils", "mlx_vlm.tokenizer_utils"
_SERVER = f"{_VLM}:_ServerTokenStreamer"
PATCH = Patch(
    id="detokenizer-text",
    targets=(
        *wrap(f"{_LM}:{_BYTES}.add_token", add_unknown, when=is_unknown),
        *argument(f"{_LM}:{_BYTES}._decode_bytes", "seq", replace_nul, when=has_nul),
        *wrap(f"{_LM}:{_BYTES}._maybe_trim_space", keep_first_space, when=is_at_start),
        *wrap(f"{_LM}:{_PIECES}.__init__", begin_by_vocabulary),
        *wrap(f"{_LM}:{_PIECES}.add_token", add_unknown, when=is_unknown),
        *wrap(f"{_LM}:{_PIECES}._try_flush", keep_buffer, when=holds_first_space),
        *after(f"{_VLM}:{_BYTES}.__init__", spell_added_tokens),
        *wrap(f"{_VLM}:{_BYTES}.add_token", add_byte_level, when=may_raise),
        *wrap(f"{_VLM}:{_BYTES}.finalize", drop_cut_character),
        *wrap(f"{_VLM}:{_PIECES}.__init__", begin_by_vocabulary),
        *wrap(f"{_VLM}:{_PIECES}.add_token", add_sentencepiece, when=may_wait),
        *wrap(f"{_VLM}:{_PIECES}.finalize", drop_cut_character),
        *wrap(f"{_VLM}:NaiveStreamingDetokenizer.finalize", drop_cut_character),
        *after(f"{_SERVER}._emit_text", mark_started, when=is_not_started),
        *wrap(f"{_SERVER}._spm_text_for_token", decode_token, when=cuts_character),
    ),
)
