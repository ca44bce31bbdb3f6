"""mlx-lm: penalties and other logits processors see only the prompt's last token.

Why
    A processor is called with the tokens so far. The prompt's tokens that were fed in chunks, all
    but the last, are not among them: a repetition penalty, or a grammar that depends on earlier
    tokens, starts with the answer.
How
    Each processor is called with the missing part of the prompt put in front. The part is found
    at the first call, from the number of tokens that the processor is called with.
Upstream
    mlx-lm 0.32.0 passes these tokens in ``generate_step``, but not in
    ``speculative_generate_step``.
Retire when
    Both functions pass them in every supported release.
"""

from collections.abc import Callable
from typing import Any

from ....core.handed import hand_over
from ....core.verbs import Patch, argument
from ..._shared.arrays import mx

Processor = Callable[[Any, Any], Any]


def show_prompt(prompt: Any, logits_processors: Any) -> Any:
    """The processors of a generation, called with the whole prompt."""
    return [add_prompt(prompt, one) for one in logits_processors or ()] or logits_processors


def add_prompt(prompt: Any, processor: Processor) -> Processor:
    """A processor for one generation that is called with the whole prompt."""
    missing: Any = None

    def process(processor: Processor, tokens: Any, logits: Any) -> Any:
        nonlocal missing
        if missing is None:
            missing = find_missing(prompt, tokens)
        return processor(mx.concatenate([missing, tokens]) if missing.size else tokens, logits)

    return hand_over("processors-prompt", process, processor)


def find_missing(prompt: Any, tokens: Any) -> Any:
    """The part of the prompt (length,) that comes before its last tokens, ``tokens`` (length,)."""
    return prompt[: max(0, prompt.size - tokens.size)]


PATCH = Patch(
    id="processors-prompt",
    every_model=True,
    targets=argument(
        ["mlx_lm.generate:generate_step", "mlx_lm.generate:speculative_generate_step"],
        "logits_processors",
        show_prompt,
    ),
)
