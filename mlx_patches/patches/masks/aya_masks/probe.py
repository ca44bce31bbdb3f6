"""Runs a tiny Aya Vision text model past its window: one row in chunks, and rows in a batch."""

from ....probes.kit import TOLERANCE, Result, Target, compare_splits, measure_each, tiny


def probe(target: Target) -> Result:
    """Red if the logits depend on how the text is split into chunks, or on other rows."""
    model = tiny("mlx-vlm", "aya_vision")
    solo = compare_splits(model, ((20,), (9, 11), (4, 4, 4, 4, 4), (1,) * 20))
    if not solo <= TOLERANCE:
        return Result(True, f"one row, whole against in chunks: differs by {solo:.3g}", solo)
    return measure_each(model, ((5, 9), (12, 3, 7)))
