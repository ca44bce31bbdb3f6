"""Streamed text loses the spaces before punctuation that the tokenizer keeps.

Why
    ``BPEStreamingDetokenizer`` removes spaces if the tokenizer's config sets
    ``clean_up_tokenization_spaces``, as Llama 3's does. Newer transformers ignore the setting for
    BPE, because it breaks text: "x != y" is streamed as "x!= y", but decoded whole as "x != y".
    Code and tool arguments are changed.
How
    The detokenizer removes spaces only if the tokenizer itself does, which is tested once by
    decoding a short text.
Upstream
    mlx-lm 1347; 0.32.0 no longer removes spaces. transformers ignores the setting from about 5.7
    on.
Retire when
    No supported release is older than mlx-lm 0.32.0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....core.patch import Patch, Target, around

SPACED = "a ,b"


def begin_like_tokenizer(
    begin: Callable[..., None], detokenizer: Any, tokenizer: Any, *args: Any, **kwargs: Any
) -> None:
    """Construct a detokenizer that removes spaces only if its tokenizer does."""
    begin(detokenizer, tokenizer, *args, **kwargs)
    if getattr(detokenizer, "clean_spaces", False) and not cleans(tokenizer):
        detokenizer.clean_spaces = False


def cleans(tokenizer: Any) -> bool:
    """Whether a tokenizer removes the space before a comma when it decodes."""
    tokens = tokenizer.encode(SPACED, add_special_tokens=False)
    return " ," not in tokenizer.decode(tokens)


PATCH = Patch(
    id="stream-spaces",
    every_model=True,
    summary="mlx-lm: streamed text loses spaces before punctuation ('x != y' becomes 'x!= y')",
    targets=(
        Target(
            "mlx-lm",
            "mlx_lm.tokenizer_utils",
            "BPEStreamingDetokenizer.__init__",
            around(begin_like_tokenizer),
            fingerprint_of=(
                "BPEStreamingDetokenizer.__init__",
                "BPEStreamingDetokenizer._maybe_trim_space",
            ),
        ),
    ),
)
