"""Logits processors do not see the prompt: a repetition penalty penalizes no word of it.

Why
    A processor is called with the tokens so far. Those of the prompt that were fed in pieces,
    all but its last, are not counted among them: a repetition penalty, or a grammar that reads
    where it is, begins with the answer.
How
    Each processor of a generation is given the rest of the prompt in front, found at its first
    call: what the prompt has more than the tokens that come with it.
Upstream
    mlx-lm 0.32.0 counts them in ``generate_step``; ``speculative_generate_step`` does not yet.
Retire when
    Both count them in every supported release.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...core.patch import Patch, Target, around

Processor = Callable[[Any, Any], Any]


def generated(
    generate: Callable[..., Any], *args: Any, logits_processors: Any = None, **kwargs: Any
) -> Any:
    """The tokens of an answer, one by one."""
    prompt = kwargs["prompt"] if "prompt" in kwargs else args[0]
    processors = [seeing(prompt, one) for one in logits_processors or ()]
    return generate(*args, logits_processors=processors or logits_processors, **kwargs)


def seeing(prompt: Any, processor: Processor) -> Processor:
    """A processor of one generation that is told the whole prompt."""
    missing: Any = None

    def process(tokens: Any, logits: Any) -> Any:
        nonlocal missing
        if missing is None:
            missing = unseen(prompt, tokens)
        return processor(together(missing, tokens), logits)

    return process


def unseen(prompt: Any, tokens: Any) -> Any:
    """What the prompt (length,) has in front of its last tokens (length,)."""
    return prompt[: max(0, prompt.size - tokens.size)]


def together(missing: Any, tokens: Any) -> Any:
    """All tokens so far."""
    import mlx.core as mx

    return mx.concatenate([missing, tokens]) if missing.size else tokens


PATCH = Patch(
    id="processors-prompt",
    summary="logits processors do not see the prompt, only its last token",
    targets=tuple(
        Target("mlx-lm", "mlx_lm.generate", name, around(generated))
        for name in ("generate_step", "speculative_generate_step")
    ),
    probe="mlx_patches.probes.processors_prompt:probe",
    module=__name__,
)
