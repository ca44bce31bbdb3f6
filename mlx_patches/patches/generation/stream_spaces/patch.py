"""mlx-lm: streamed text loses spaces before punctuation ('x != y' becomes 'x!= y').

Why: ``BPEStreamingDetokenizer`` removes spaces if the tokenizer's config sets
    ``clean_up_tokenization_spaces``, as Llama 3's does. Newer transformers ignore the setting for
    BPE, because it breaks text: "x != y" is streamed as "x!= y", but decoded whole as "x != y".
    Code and tool arguments are changed.
How: The detokenizer removes spaces only if the tokenizer itself does, which is tested once by
    decoding a short text.
Upstream: mlx-lm 1347; 0.32.0 no longer removes spaces. transformers ignores the setting from about
    5.7 on.
Retire when: No supported release is older than mlx-lm 0.32.0.
"""

from typing import Any

from ....core.verbs import Patch, after


def match_tokenizer(detokenizer: Any, tokenizer: Any, /) -> None:
    if getattr(detokenizer, "clean_spaces", False) and not removes_spaces(tokenizer):
        detokenizer.clean_spaces = False


def removes_spaces(tokenizer: Any) -> bool:
    tokens = tokenizer.encode("a ,b", add_special_tokens=False)
    return " ," not in tokenizer.decode(tokens)


PATCH = Patch(
    id="stream-spaces",
    targets=after(
        "mlx_lm.tokenizer_utils:BPEStreamingDetokenizer.__init__",
        match_tokenizer,
        fingerprint_of=(
            "BPEStreamingDetokenizer.__init__",
            "BPEStreamingDetokenizer._maybe_trim_space",
        ),
    ),
)
