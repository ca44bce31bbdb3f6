"""Streamed text loses the spaces before punctuation that the tokenizer keeps.

Why
    ``BPEStreamingDetokenizer`` takes spaces away where the tokenizer's config asks for
    ``clean_up_tokenization_spaces``, as Llama 3's does. Newer transformers ignore that for BPE,
    since it breaks text: "x != y" is streamed as "x!= y", and decoded whole as "x != y". Code and
    arguments of tools are changed.
How
    The detokenizer cleans only what the tokenizer itself cleans: a short text is decoded once to
    see it.
Upstream
    mlx-lm 1347; 0.32.0 no longer cleans. transformers ignores the setting from about 5.7 on.
Retire when
    No supported release is older than mlx-lm 0.32.0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...core.patch import Patch, Target, around

SPACED = "a ,b"


def begin_like_tokenizer(
    begin: Callable[..., None], detokenizer: Any, tokenizer: Any, *args: Any, **kwargs: Any
) -> None:
    """A detokenizer's own constructor; then it cleans as the tokenizer does."""
    begin(detokenizer, tokenizer, *args, **kwargs)
    if getattr(detokenizer, "clean_spaces", False) and not cleans(tokenizer):
        detokenizer.clean_spaces = False


def cleans(tokenizer: Any) -> bool:
    """Whether a tokenizer takes away the space before a comma as it decodes."""
    tokens = tokenizer.encode(SPACED, add_special_tokens=False)
    return " ," not in tokenizer.decode(tokens)


PATCH = Patch(
    id="stream-spaces",
    summary="streamed text loses spaces before punctuation: 'x != y' becomes 'x!= y'",
    targets=(
        Target(
            "mlx-lm",
            "mlx_lm.tokenizer_utils",
            "BPEStreamingDetokenizer.__init__",
            around(begin_like_tokenizer),
            body=(
                "BPEStreamingDetokenizer.__init__",
                "BPEStreamingDetokenizer._maybe_trim_space",
            ),
        ),
    ),
    probe="mlx_patches.probes.stream_spaces:probe",
    module=__name__,
)
