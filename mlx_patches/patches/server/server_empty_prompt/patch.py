"""mlx_lm.server hangs for good after an empty prompt.

Why: A tokenizer that adds no special tokens returns no tokens for an empty text. With nothing to
    feed, the generation thread raises and ends, and later requests hang.
How: A prompt without tokens gets the tokenizer's BOS token or, if it has none, its EOS token, which
    ends the text before.
Upstream: Not fixed in mlx-lm 0.32.2.
Retire when: The server answers an empty prompt, or refuses it.
"""

from typing import Any

from ....core.verbs import Patch, result


def fill_empty_prompt(tokenized: Any, tokenizer: Any) -> Any:
    """The tokens of a request's prompt, at least one; later releases return more beside them."""
    prompt = tokenized[0] if isinstance(tokenized, tuple) else tokenized
    if not prompt:
        prompt += find_first_token(tokenizer)  # in place: the prompt's segments are the same list
    return tokenized


def find_first_token(tokenizer: Any) -> list[int]:
    """The token that starts a text, as a list; empty if the tokenizer has none."""
    ids = (tokenizer.bos_token_id, tokenizer.eos_token_id)
    return [token for token in ids if token is not None][:1]


PATCH = Patch(
    id="server-empty-prompt",
    severity="crash",
    targets=result("mlx_lm.server:ResponseGenerator._tokenize", fill_empty_prompt),
)
