"""mlx_lm.server answers 404 to very short prompts of thinking models.

Why: The server searches the last eleven tokens of a prompt for the start of a thought. In a shorter
    prompt the search starts at a negative index and runs past the front of the list; the IndexError
    becomes "404: list index out of range".
How: A search never starts before the first token.
Upstream: mlx-lm 1326, 1327, 1360; 0.32.0 does the same.
Retire when: No supported release is older than mlx-lm 0.32.0.
"""

from ....core.verbs import Patch, argument


def clamp_start(start: int | None) -> int | None:
    return start if start is None else max(0, start)


PATCH = Patch(
    id="server-short-prompt",
    severity="crash",
    targets=argument("mlx_lm.tokenizer_utils:TokenizerWrapper._find", "start", clamp_start),
)
