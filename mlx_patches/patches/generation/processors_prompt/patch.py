"""Logits processors do not see the prompt: a repetition penalty does not cover it.

Why
    A processor is called with the tokens so far. The prompt's tokens that were fed in pieces, all
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

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....core.handed import hand_over
from ....core.patch import Patch, Target, around

Processor = Callable[[Any, Any], Any]


def generated(
    generate: Callable[..., Any], *args: Any, logits_processors: Any = None, **kwargs: Any
) -> Any:
    """The tokens of an answer, one by one; processors get the whole prompt."""
    prompt = kwargs["prompt"] if "prompt" in kwargs else args[0]
    processors = [seeing(prompt, one) for one in logits_processors or ()]
    return generate(*args, logits_processors=processors or logits_processors, **kwargs)


def seeing(prompt: Any, processor: Processor) -> Processor:
    """A processor for one generation that is called with the whole prompt."""
    import mlx.core as mx

    missing: Any = None

    def process(processor: Processor, tokens: Any, logits: Any) -> Any:
        nonlocal missing
        if missing is None:
            missing = unseen(prompt, tokens)
        return processor(mx.concatenate([missing, tokens]) if missing.size else tokens, logits)

    return hand_over("processors-prompt", process, processor)


def unseen(prompt: Any, tokens: Any) -> Any:
    """The part of the prompt (length,) that comes before its last tokens, ``tokens`` (length,)."""
    return prompt[: max(0, prompt.size - tokens.size)]


PATCH = Patch(
    id="processors-prompt",
    every_model=True,
    summary="mlx-lm: penalties and other logits processors see only the prompt's last token",
    targets=tuple(
        Target("mlx-lm", "mlx_lm.generate", name, around(generated))
        for name in ("generate_step", "speculative_generate_step")
    ),
)
