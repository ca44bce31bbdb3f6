"""Makes a batch of a prompt whose beginning is in the prefix cache, with a logits processor."""

from types import SimpleNamespace
from typing import Any

from ....probes.kit import Result, Target, make_prompt_batch, own_module, require_parameter

PROMPT = [5, 6, 7, 8, 9]
HELD = 3


def probe(target: Target) -> Result:
    """Red if the row's processors do not see the tokens in the cache."""
    kind = own_module(target).PromptProcessingBatch
    require_parameter(kind.__init__, "apc_meta")
    batch = batch_of(kind, [PROMPT[HELD:]], [{"full_input_ids": PROMPT, "prefix_len": HELD}])
    seen = batch._token_context
    return Result(seen != [PROMPT], f"the processors of the prompt {PROMPT} begin with {seen}")


def batch_of(kind: Any, rests: list[list[int]], meta: Any, processors: Any = None) -> Any:
    """A batch of prompts of which only these rests are left to process."""
    processors = (
        [[lambda tokens, logits: logits]] * len(rests) if processors is None else processors
    )
    options = {"logits_processors": processors, "prefill_step_size": None, "apc_meta": meta}
    return make_prompt_batch(kind, rests, SimpleNamespace(), inputs_embeds=None, **options)
