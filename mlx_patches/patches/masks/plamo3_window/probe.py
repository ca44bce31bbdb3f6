"""Feeds a tiny model a text in one call and token by token, far past its window."""

from ....probes.kit import Result, Target, mx, tiny_of

TOLERANCE = 1e-3


def probe(target: Target) -> Result:
    """Red if a position's logits differ between the two."""
    model = tiny_of(target)
    assert model.window is not None
    text = [1 + (7 * i) % (model.vocabulary - 2) for i in range(3 * model.window)]
    whole = model.call([text], model.make_cache())[0]
    cache = model.make_cache()
    stepped = mx.concatenate([model.call([[token]], cache)[0] for token in text])
    distance = mx.abs(whole - stepped).max(axis=-1) / mx.abs(whole).max()
    wrong = [place for place, one in enumerate(distance.tolist()) if not one <= TOLERANCE]
    if wrong:
        return Result(True, f"positions from {wrong[0]} on differ", float(distance.max().item()))
    return Result(False, "every position has the same logits", float(distance.max().item()))
