"""Compares Gemma 3n's correction step on a batch with the step on each single row."""

from ....probes.kit import Result, Target, module_of, mx, tiny

_ROWS, _TOKENS = 3, 5
_TOLERANCE = 1e-5


def probe(target: Target) -> Result:
    """Red if the batched correction raises, or differs from that of a single row."""
    module_of(target)
    altup = tiny(target.distribution, "gemma3n").module.layers[0].altup
    inputs, width = altup.config.altup_num_inputs, altup.config.hidden_size
    predictions = mx.random.normal((inputs, _ROWS, _TOKENS, width), key=mx.random.key(0))
    activated = mx.random.normal((_ROWS, _TOKENS, width), key=mx.random.key(1))
    batched = altup.correct(predictions, activated)
    solo = [
        altup.correct(predictions[:, row : row + 1], activated[row : row + 1])
        for row in range(_ROWS)
    ]
    worst = float(mx.abs(batched - mx.concatenate(solo, axis=1)).max().item())
    return Result(not worst <= _TOLERANCE, f"rows differ by at most {worst:.2g}", worst)
