"""Generates with a tiny model, and checks the default stream between tokens and after the end."""

from typing import Any

from ....lab.threads import in_a_thread
from ....probes.kit import Result, Target, module_of, mx, tiny


def probe(target: Target) -> Result:
    """Red if the caller's default stream changes, or closing the generator raises."""
    model = tiny("mlx-lm", "llama").module
    models = [model, model] if target.name.startswith("speculative") else [model]
    device = mx.default_device()
    before = mx.default_stream(device)
    faults = []

    def begin() -> Any:
        generate = getattr(module_of(target), target.name)
        tokens = generate(mx.array([5, 9, 2, 7]), *models, max_tokens=6)
        next(tokens)
        return tokens

    try:
        tokens = begin()
        if mx.default_stream(device) != before:
            faults.append("the default stream changes between two tokens")
        tokens.close()
        if error := in_a_thread(begin().close):
            faults.append(str(error))
        if mx.default_stream(device) != before:
            faults.append("the default stream stays changed after the end")
    finally:
        mx.set_default_device(device)
        mx.set_default_stream(before)
    return Result(bool(faults), "; ".join(faults) or "the default stream stays")
