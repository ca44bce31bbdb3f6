"""Joins rows of a chunked layer: one that dropped tokens, a shorter one, and an empty one."""

from typing import Any

from ....probes.kit import Result, Target, import_module, mx, require_names, require_own

CHUNK = 4
LENGTHS = (6, 3, 0)


def probe(target: Target) -> Result:
    """Red if a row's tokens are not at the end of its row in the joined cache."""
    join = require_own(target)
    caches = import_module("mlx_vlm.models.cache")
    require_names(caches, "ChunkedKVCache")
    rows = [make_chunked_row(caches, length) for length in LENGTHS]
    joined = join(rows, list(LENGTHS))
    wrong = compare_rows(joined, rows)
    return Result(bool(wrong), "; ".join(wrong) or "each row's tokens are in the joined cache")


def make_chunked_row(caches: Any, length: int) -> Any:
    """A row's cache after this many tokens, without those that it dropped."""
    one = caches.ChunkedKVCache(CHUNK)
    if length:
        one.update_and_fetch(*mx.random.normal((2, 1, 2, length, 4)))
        # Not by ``maybe_trim_front``, which counts the buffer's columns up to mlx-vlm 0.6.
        one.start_position = max(0, length - CHUNK)
        one.keys, one.values = (
            held[..., one.start_position : length, :] for held in (one.keys, one.values)
        )
    return one


def compare_rows(joined: Any, rows: Any) -> list[str]:
    found = []
    for number, (row, length) in enumerate(zip(rows, LENGTHS, strict=True)):
        if (offset := joined.offset[number].item()) != length:
            found.append(f"row {number}: at position {offset}, not {length}")
            continue
        for name in ("keys", "values"):
            if (want := getattr(row, name)) is None:
                continue
            held = getattr(joined, name)[number : number + 1, :, : max(LENGTHS)]
            if not mx.array_equal(held[:, :, -want.shape[2] :], want):
                found.append(f"row {number}: {name} differ")
    return found
