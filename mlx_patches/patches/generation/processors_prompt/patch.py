"""mlx-lm: penalties and other logits processors see only the prompt's last token.

Why: A processor is called with the tokens so far. The prompt's tokens that were fed in chunks, all
    but the last, are not among them: a repetition penalty, or a grammar that depends on earlier
    tokens, starts with the answer.
How: Each processor is called with the missing part of the prompt put in front. The part is found at
    the first call, from the number of tokens that the processor is called with.
Upstream: mlx-lm 0.32.0 passes these tokens in ``generate_step``, but not in
    ``speculative_generate_step``.
Retire when: Both functions pass them in every supported release.
"""

from typing import Any

from ....core.verbs import Patch, argument
from ..._shared.prompt_tokens import add_prompt


def show_prompt(prompt: Any, logits_processors: Any) -> Any:
    """The processors of a generation, called with the whole prompt."""
    shown = [add_prompt("processors-prompt", prompt, one) for one in logits_processors or ()]
    return shown or logits_processors


PATCH = Patch(
    id="processors-prompt",
    targets=argument(
        ["mlx_lm.generate:generate_step", "mlx_lm.generate:speculative_generate_step"],
        "logits_processors",
        show_prompt,
    ),
)
