"""mlx-lm with a draft model and num_draft_tokens 0: penalties ignore the answer so far.

Why: After each step, the release removes the drafted tokens from those that logits processors are
    called with. Without drafts, it still removes one, which belongs to the answer.
How: With ``num_draft_tokens`` 0, each processor is called with the last token of every call.
Upstream: Not fixed in mlx-lm 0.32.2.
Retire when: ``speculative_generate_step`` removes only drafted tokens.
"""

from typing import Any

from ....core.verbs import Patch, argument, mx


def keep_tokens(logits_processors: Any) -> Any:
    """The processors of a generation, called with all of its tokens."""
    return [SeesAll(one) for one in logits_processors]


class SeesAll:
    """A processor whose calls each have one more token."""

    def __init__(self, processor: Any):
        self._processor, self._tokens = processor, None

    def __call__(self, tokens: Any, logits: Any) -> Any:
        """Call the processor with the tokens of all calls."""
        last = tokens[-1:]
        self._tokens = last if self._tokens is None else mx.concatenate([self._tokens, last])
        return self._processor(self._tokens, logits)


def has_no_drafts(logits_processors: Any, num_draft_tokens: int) -> bool:
    """Whether processors are called without drafts."""
    return bool(logits_processors) and num_draft_tokens == 0


PATCH = Patch(
    id="draft-none",
    targets=argument(
        "mlx_lm.generate:speculative_generate_step",
        "logits_processors",
        keep_tokens,
        when=has_no_drafts,
    ),
)
