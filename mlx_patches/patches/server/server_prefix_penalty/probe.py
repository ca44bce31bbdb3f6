"""Prepares a request whose prompt is in the prompt cache, all but its last tokens."""

import inspect
from types import SimpleNamespace
from typing import Any

from ....probes.kit import NotApplicable, Result, Target, module_with, mx
from ....probes.lm_server import make_context, make_generator

PROMPT = [3, 1, 4, 1, 5]


def probe(target: Target) -> Result:
    """Red if a penalty does not cover the cached tokens."""
    module = module_with(target)
    if "args" not in inspect.signature(module.ResponseGenerator._tokenize).parameters:
        raise NotApplicable("this release's server tokenizes without the request's arguments")
    for held in (0, 3):
        penalized = find_penalized(module, held)
        if penalized != sorted(set(PROMPT)):
            return Result(True, f"{held} of {PROMPT} cached: only {penalized} are penalized")
    return Result(False, "the whole prompt is penalized")


def find_penalized(module: Any, held: int, **penalties: float) -> list[int]:
    """The tokens that the processors penalize if the first ``held`` of the prompt are cached."""
    args = SimpleNamespace(logits=make_penalties(penalties or {"repetition_penalty": 2.0}))
    generator = make_generator(module, make_context(module), ())
    request = SimpleNamespace(request_type="text", prompt="", messages=[])
    tokenizer = SimpleNamespace(encode=lambda text: list(PROMPT))
    generator._tokenize(tokenizer, request, args)
    logits = mx.ones((1, 8))
    for process in module._make_logits_processors(args):
        logits = process(mx.array(PROMPT[held:]), logits)
    return [token for token, value in enumerate(logits[0].tolist()) if value < 1]


def make_penalties(given: dict[str, float]) -> Any:
    names = ("repetition", "presence", "frequency")
    known: dict[str, Any] = {f"{name}_penalty": 0.0 for name in names}
    known |= {f"{name}_context_size": 20 for name in names}
    return SimpleNamespace(logit_bias=None, **(known | given))
