"""Generates with a tiny model and a logits processor that records its tokens."""

from typing import Any

from ....probes.drafted import decode
from ....probes.kit import Result, Target, module_of, mx, require_own, tiny

_PROMPT = [5, 9, 2, 7, 3]
_CHUNK = 2
_TOKENS = 4
# A token that the prompt does not have.
_FREE = 11


def probe(target: Target) -> Result:
    """Red if the processor is not passed the whole prompt and the answer so far."""
    if target.distribution == "mlx-vlm":
        require_own(target)
        return probe_vlm(module_of(target))
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


def probe_vlm(module: Any) -> Result:
    """Red if a token of the prompt is not penalized, or a processor gets less than all tokens."""
    model, calls = tiny("mlx-vlm", "qwen3_5").module, list[list[int]]()

    def record(tokens: Any, logits: Any) -> Any:
        calls.append(tokens.tolist())
        return logits

    answer = decode(
        module,
        model,
        _PROMPT,
        prefill_step_size=_CHUNK,
        logit_bias={_PROMPT[0]: 1000.0, _FREE: 500.0},
        repetition_penalty=1000.0,
        logits_processors=[record],
    )
    if answer[0] != _FREE:
        return Result(True, f"the answer is {answer}: token {_PROMPT[0]} is not penalized")
    return Result(calls[0] != _PROMPT, f"a processor is passed {calls[0]} of {_PROMPT}")
