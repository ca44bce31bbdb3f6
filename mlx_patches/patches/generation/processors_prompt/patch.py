"""mlx-lm, mlx-vlm: penalties and other logits processors see only the prompt's last token.

Why: A processor is called with the tokens so far. The prompt's tokens that were fed in chunks, all
    but the last, are not among them: a repetition penalty, or a grammar that depends on earlier
    tokens, starts with the answer.
How: Each processor is called with the missing part of the prompt put in front. The part is found at
    the first call, from the number of tokens that the processor is called with. mlx-vlm gets its
    penalties as such processors.
Upstream: mlx-lm 0.32.0 passes these tokens in ``generate_step``, but not in
    ``speculative_generate_step``. Not fixed in mlx-vlm 0.7.10, which feeds any prompt in chunks.
Retire when: All three functions pass them in every supported release.
"""

import importlib
import inspect
from typing import Any

from ....core.verbs import Function, Patch, argument, wrap
from ..._shared.prompt_tokens import add_prompt
from ..._shared.targets import vlm_generators


def show_prompt(prompt: Any, logits_processors: Any) -> Any:
    """The processors of a generation, called with the whole prompt."""
    shown = [add_prompt("processors-prompt", prompt, one) for one in logits_processors or ()]
    return shown or logits_processors


def show_vlm_prompt(generate: Function, input_ids: Any, *args: Any, **options: Any) -> Any:
    """Generate with penalties as processors, which are called with the whole prompt."""
    make = importlib.import_module(generate.__module__).make_logits_processors
    names = inspect.signature(make).parameters.keys() & options
    penalties = {name: options.pop(name) for name in names}
    if penalties.get("repetition_penalty") == 1:  # it changes nothing
        del penalties["repetition_penalty"]
    processors = [*make(**penalties), *(options.pop("logits_processors", None) or ())]
    shown = show_prompt(input_ids.flatten(), processors)
    return generate(input_ids, *args, **options, logits_processors=shown)


PATCH = Patch(
    id="processors-prompt",
    targets=(
        *argument(
            ["mlx_lm.generate:generate_step", "mlx_lm.generate:speculative_generate_step"],
            "logits_processors",
            show_prompt,
        ),
        *wrap(vlm_generators("generate_step"), show_vlm_prompt),
    ),
)
