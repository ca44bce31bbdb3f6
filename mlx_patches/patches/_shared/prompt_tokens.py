"""Logits processors that are called with the whole prompt."""

from collections.abc import Callable
from typing import Any

from ...core.arrays import mx
from ...core.handed import hand_over

Processor = Callable[[Any, Any], Any]


def add_prompt(patch: str, prompt: Any, processor: Processor) -> Processor:
    """A processor for one generation that is called with the whole prompt.

    The missing part is found at the first call, from the number of tokens of that call.
    """
    missing: Any = None

    def process(processor: Processor, tokens: Any, logits: Any) -> Any:
        nonlocal missing
        if missing is None:
            missing = find_missing(prompt, tokens)
        return processor(mx.concatenate([missing, tokens]) if missing.size else tokens, logits)

    return hand_over(patch, process, processor)


def find_missing(prompt: Any, tokens: Any) -> Any:
    """The part of the prompt (length,) that comes before its last tokens, ``tokens`` (length,)."""
    return prompt[: max(0, prompt.size - tokens.size)]
