"""Makes a batch of a prompt whose beginning is in the prefix cache, with a logits processor."""

from __future__ import annotations

import importlib
import inspect
from types import SimpleNamespace
from typing import Any

from ....core.patch import Target
from ....probes import NotApplicable, Result
from ....probes.fixtures import batch_of_prompts, require_own

PROMPT = [5, 6, 7, 8, 9]
HELD = 3


def probe(target: Target) -> Result:
    """Red if the row's processors do not see the tokens in the cache."""
    require_own(target)
    kind = importlib.import_module(target.module).PromptProcessingBatch
    if "apc_meta" not in inspect.signature(inspect.unwrap(kind.__init__)).parameters:
        raise NotApplicable("this release has no prefix cache in its batches")
    batch = batch_of(kind, [PROMPT[HELD:]], [{"full_input_ids": PROMPT, "prefix_len": HELD}])
    seen = batch._token_context
    return Result(seen != [PROMPT], f"the processors of the prompt {PROMPT} begin with {seen}")


def batch_of(kind: Any, rests: list[list[int]], meta: Any, processors: Any = None) -> Any:
    """A batch of prompts of which only these rests are left to process."""
    processors = (
        [[lambda tokens, logits: logits]] * len(rests) if processors is None else processors
    )
    options = {"logits_processors": processors, "prefill_step_size": None, "apc_meta": meta}
    return batch_of_prompts(kind, rests, SimpleNamespace(), inputs_embeds=None, **options)
