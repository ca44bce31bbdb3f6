"""Extends a bfloat16 batch with an empty one, and the reverse."""

from ....probes.kit import NotApplicable, Result, Target, make_batch, mx, own_class_of

_WRITTEN, _NEW, _TOKENS, _WINDOW = 2, 1, 3, 8


def probe(target: Target) -> Result:
    """Red if the joined keys or values have another dtype, or a row is missing."""
    kind = own_class_of(target)
    for new_first in (False, True):
        written, new = (make_batch(kind, [0] * rows, _WINDOW) for rows in (_WRITTEN, _NEW))
        tokens = mx.ones((_WRITTEN, 1, _TOKENS, 4), mx.bfloat16)
        written.update_and_fetch(tokens, tokens)
        cache, other = (new, written) if new_first else (written, new)
        try:
            cache.extend(other)
        except AttributeError as error:
            raise NotApplicable(f"this release cannot join an empty batch: {error}") from error
        for side in (cache.keys, cache.values):
            if side.dtype != mx.bfloat16 or side.shape[0] != _WRITTEN + _NEW:
                place = "before" if new_first else "after"
                return Result(
                    True,
                    f"a new row {place} {_WRITTEN} of bfloat16: {side.shape[0]} rows of "
                    f"{str(side.dtype).rpartition('.')[2]}, {side.nbytes} bytes",
                )
    return Result(False, "keys and values stay bfloat16")
