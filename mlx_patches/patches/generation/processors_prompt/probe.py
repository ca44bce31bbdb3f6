"""Generates with a tiny model and a logits processor that records its tokens."""

from typing import Any

from ....probes.kit import Result, Target, module_of, mx, tiny

_PROMPT = [5, 9, 2, 7, 3]
_CHUNK = 2
_TOKENS = 4


def probe(target: Target) -> Result:
    """Red if the processor is not passed the whole prompt and the answer so far."""
    module = module_of(target)
    model = tiny("mlx-lm", "llama").module
    calls: list[list[int]] = []

    def record(tokens: Any, logits: Any) -> Any:
        calls.append(tokens.tolist())
        return logits

    models = [model, model] if target.name.startswith("speculative") else [model]
    steps = getattr(module, target.name)(
        mx.array(_PROMPT),
        *models,
        max_tokens=_TOKENS,
        prefill_step_size=_CHUNK,
        logits_processors=[record],
    )
    answer = [int(step[0]) for step in steps]
    text = _PROMPT + answer
    for tokens in calls:
        seen = tokens[: len(text)]
        if len(seen) < len(_PROMPT) or seen != text[: len(seen)]:
            return Result(True, f"the processor is passed {tokens} of {text}")
    return Result(False, f"the processor is passed {len(_PROMPT)} tokens and the answer so far")
