"""Merges a row that was fed more than a window in one chunk with a short row."""

from ....probes.kit import Result, Target, make_fed_cache, module_with, mx, own_class_of

_WINDOW = 4
_LENGTHS = (7, 3)


def probe(target: Target) -> Result:
    """Red if the rows do not merge, or one differs from its solo cache."""
    batch_kind = own_class_of(target)
    caches = module_with(target)
    rows = [make_fed_cache(caches.RotatingKVCache(_WINDOW), length) for length in _LENGTHS]
    batch = batch_kind.merge(rows)
    if batch.offset.tolist() != list(_LENGTHS):
        return Result(True, f"offsets {batch.offset.tolist()}, not {list(_LENGTHS)}")
    step = mx.full((len(rows), 1, 1, 1), 99.0)
    held = batch.update_and_fetch(step, step)[0]
    for row, (cache, length) in enumerate(zip(rows, _LENGTHS, strict=True)):
        seen = sorted(held[row, 0, :, 0].tolist())[-min(length + 1, _WINDOW) :]
        wanted = sorted(cache.update_and_fetch(step[:1], step[:1])[0][0, 0, :, 0].tolist())
        if seen != wanted[-len(seen) :]:
            return Result(True, f"row {row} sees tokens {seen}, solo {wanted}")
    return Result(False, "every row sees its own window")
