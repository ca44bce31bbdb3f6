"""Applies XTC to two rows with different distributions, in a batch and solo."""

from ....probes.kit import Result, Target, mx, require

_ALWAYS, _THRESHOLD, _SPECIAL = 1.0, 0.1, [3]


def probe(target: Target) -> Result:
    """Red if a row keeps different tokens in a batch."""
    apply_xtc = require(target)
    logits = mx.log(mx.array(([0.6, 0.3, 0.05, 0.05], [0.4, 0.25, 0.2, 0.15])))
    batch = apply_xtc(logits, _ALWAYS, _THRESHOLD, _SPECIAL).tolist()
    for index, seen in enumerate(batch):
        (solo,) = apply_xtc(logits[index : index + 1], _ALWAYS, _THRESHOLD, _SPECIAL).tolist()
        if seen != solo:
            kept = [[i for i, one in enumerate(row) if one > -100] for row in (seen, solo)]
            return Result(True, f"row {index} keeps {kept[0]}, solo {kept[1]}")
    return Result(False, "each row keeps the tokens of its solo run")
