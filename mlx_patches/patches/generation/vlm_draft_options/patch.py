"""mlx-vlm with a drafter: penalties and logit_bias ignored; a block size of 1 ends the answer.

Why: Logits processors, penalties, ``logit_bias`` and thinking budgets change only the first token:
    drafts are verified without them. A block holds a known token and the drafts; without room for a
    draft, generation ends after one token.
How: A generation with one of them runs without the drafter, with a warning; a batch generator that
    drafts refuses such prompts. A block holds at least one draft.
Upstream: Not fixed in mlx-vlm 0.7.10, whose server refuses grammars and thinking budgets.
Retire when: Drafts are verified with the processors, and a block of one token drafts nothing.
"""

import logging
from typing import Any

from ....core.errors import refusal
from ....core.verbs import Function, Patch, argument, before, wrap
from ..._shared.targets import vlm_generators

logger = logging.getLogger("mlx_patches")

_BATCH = "mlx_vlm.generate.ar:BatchGenerator"
_PROCESSORS = (
    *("logits_processors", "logit_bias", "thinking_budget_criteria"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty"),
)


def check_drafter(generate: Function, *args: Any, **options: Any) -> Any:
    """Generate without the drafter if it would ignore an option."""
    if options.get("draft_model") is None:
        return generate(*args, **options)
    if name := find_processor(options):
        logger.warning("mlx_patches: %s: the drafter does not support it and is not used", name)
        options["draft_model"] = None
    elif "draft_block_size" in options:
        options["draft_block_size"] = hold_a_draft(options["draft_block_size"])
    return generate(*args, **options)


def find_processor(options: dict[str, Any]) -> str | None:
    """The name of an option that changes logits; a repetition penalty of 1 does not."""
    names = (name for name in _PROCESSORS if options.get(name))
    return next((one for one in names if (one, options[one]) != ("repetition_penalty", 1)), None)


def hold_a_draft(draft_block_size: Any) -> Any:
    """The block size, with room for a draft; None for the drafter's own."""
    return draft_block_size and max(2, draft_block_size)


def has_draft(generator: Any, /) -> bool:
    return generator.draft_model is not None


def refuse_processors(self: Any, logits_processors: Any, thinking_budget_criteria: Any) -> None:
    """Refuse prompts whose processors a batch generator would ignore after the first token."""
    processors = [
        *(logits_processors or [self.logits_processors]),
        *(thinking_budget_criteria or ()),
    ]
    if has_draft(self) and any(processors):
        raise refusal(ValueError("logits processors: not supported with a draft model; remove one"))


PATCH = Patch(
    id="vlm-draft-options",
    targets=(
        *wrap(vlm_generators("generate_step"), check_drafter),
        *argument(f"{_BATCH}.__init__", "draft_block_size", hold_a_draft),
        *before(f"{_BATCH}.insert", refuse_processors, when=has_draft),
    ),
)
