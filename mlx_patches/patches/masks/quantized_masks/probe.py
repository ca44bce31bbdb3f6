"""Runs attention over quantized rows with padding, and compares each with its solo run."""

from typing import Any

from ....probes.kit import Result, Target, import_module, mx, own_class_of, require_own
from ....probes.quantized_batches import BITS, WIDTH, Kind, feed

_SCALE = WIDTH**-0.5


def probe(target: Target) -> Result:
    """Red if a row attends to its padding, or attention raises."""
    if target.name.endswith("make_mask"):
        return _mask(Kind(own_class_of(target)))
    return _shape(target) if target.name.endswith("update_and_fetch") else _attention(target)


def _shape(target: Target) -> Result:
    kind = Kind(own_class_of(target))
    if hasattr(import_module("mlx_vlm.models.base"), "kv_sequence_length"):
        return Result(False, "models do not read the shape of keys")
    shape = (2, 1, 6, WIDTH)
    floats = _draw(0, shape)
    held = kind.batch([1, 0]).update_and_fetch(floats, floats)
    shapes = [getattr(part, "shape", None) for part in held]
    wanted = [shape] * 2
    return Result(shapes != wanted, f"the shapes of packed keys and values are {shapes}")


def _mask(kind: Kind) -> Result:
    padding = [3, 0, 1]
    cache = kind.batch(padding)
    for tokens in (6, 1, 2):
        mask = cache.make_mask(tokens, return_array=False, window_size=None)
        feed(cache, [(row, 0) for row in range(3)], tokens)
        end = cache._idx
        if not isinstance(mask, mx.array):
            return Result(True, f"the mask of a padded batch is {mask}")
        seen = mx.broadcast_to(mask, (3, 1, tokens, end))[:, 0]
        for row, pad in enumerate(padding):
            for query in range(tokens):
                place = end - tokens + query
                wanted = [pad <= key <= place for key in range(end)]
                if place >= pad and seen[row, query].tolist() != wanted:
                    return Result(True, f"row {row} with {pad} of padding sees other tokens")
    return Result(False, "every row sees its own tokens")


def _attention(target: Target) -> Result:
    attend = require_own(target)
    for rows, heads, groups in ((2, 4, 2), (3, 4, 2), (3, 2, 2), (1, 4, 2)):
        count, padding = 6, [2 * row for row in range(rows)]
        queries = _draw(0, (rows, heads, 2, WIDTH))
        keys, values = (_draw(seed, (rows, groups, count, WIDTH)) for seed in (1, 2))
        place = mx.arange(count)
        causal = place[None] <= mx.arange(count - 2, count)[:, None]
        masks = mx.stack([causal & (place[None] >= pad) for pad in padding])[:, None]
        seen = _attend(attend, queries, keys, values, masks)
        for row, pad in enumerate(padding):
            one = slice(row, row + 1)
            solo = _attend(
                attend, queries[one], keys[one, :, pad:], values[one, :, pad:], causal[:, pad:]
            )
            distance = mx.abs(seen[one] - solo).max().item()
            if not distance < 1e-4:
                return Result(
                    True,
                    f"row {row} of {rows} differs by {distance:.2g} from its solo run",
                    distance,
                )
    return Result(False, "every row equals its solo run")


def _attend(attend: Any, queries: Any, keys: Any, values: Any, mask: Any) -> Any:
    packed = [mx.quantize(part, group_size=WIDTH, bits=BITS) for part in (keys, values)]
    # A copy: some releases scale the queries in place.
    return attend(queries + 0, *packed, scale=_SCALE, mask=mask, group_size=WIDTH, bits=BITS)


def _draw(seed: int, shape: tuple[int, ...]) -> Any:
    return mx.random.normal(shape, key=mx.random.key(seed))
