"""Decodes without drafts, and records the tokens that a logits processor is called with."""

from typing import Any

from ....probes.kit import CountingModel, Result, Target, module_of, mx

_PROMPT = 5


def probe(target: Target) -> Result:
    """Red if the processor is not called with the whole answer."""
    answer, calls = decode(module_of(target), target.name, num_draft_tokens=0)
    if calls[-1] != [_PROMPT, *answer[:-1]]:
        return Result(True, f"the answer is {answer}, the last call has only {calls[-1]}")
    return Result(False, f"the last call has the prompt and {answer[:-1]}")


def decode(module: Any, name: str, **options: Any) -> tuple[list[int], list[list[int]]]:
    """An answer of six tokens, and the tokens of each call of its processor."""
    calls = []

    def process(tokens: Any, logits: Any) -> Any:
        calls.append(tokens.tolist())
        return logits

    steps = getattr(module, name)(
        mx.array([_PROMPT]),
        CountingModel(),
        CountingModel(),
        prompt_cache=[],
        max_tokens=6,
        logits_processors=[process],
        **options,
    )
    return [int(step[0]) for step in steps], calls
