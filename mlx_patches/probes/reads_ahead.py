"""Changes the last token of a text, and compares the logits of the tokens before it."""

from ..core.patch import Target
from . import Result
from .batch_invariance import family_of, measure_distance, tiny

_TEXT = (5, 9, 2, 7, 3)
_LAST = 11


def probe(target: Target) -> Result:
    """Red if a token's logits depend on a token that follows it."""
    from ..lab import EXACT

    model = tiny("mlx-vlm", family_of(target))
    texts = [_TEXT, (*_TEXT[:-1], _LAST)]
    one, other = (model.call([list(text)], model.make_cache())[0, :-1] for text in texts)
    distance = measure_distance(other, one)
    detail = f"tokens before the last one differ by {distance:.2g} of the logits' scale"
    return Result(not distance <= EXACT.logits, detail, distance)
