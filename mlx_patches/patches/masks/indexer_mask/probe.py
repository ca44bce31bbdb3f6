"""Lets the indexer of a tiny model select keys for a padded batch, and for each single row."""

from typing import Any

from ....probes.kit import Result, Target, mx, tiny_of

LENGTH, PADDING, SELECTED = 8, (0, 2), 3


def probe(target: Target) -> Result:
    """Red if a row selects other keys than in a solo run, or the selection raises."""
    for row, (batched, solo) in enumerate(selections(tiny_of(target).module)):
        if batched != solo:
            return Result(True, f"row {row} selects {batched}, solo {solo}")
    return Result(False, "each row selects the keys of its solo run")


def selections(module: Any) -> list[tuple[list[int], list[int]]]:
    """The keys that each row's last token selects, in the batch and in a solo run."""
    indexer = module.model.layers[0].self_attn.indexer
    indexer.index_topk = SELECTED
    hidden, rank = (layer.weight.shape[-1] for layer in (indexer.wk, indexer.wq_b))
    x = mx.random.normal((len(PADDING), LENGTH, hidden), key=mx.random.key(1))
    qr = mx.random.normal((len(PADDING), LENGTH, rank), key=mx.random.key(2))
    causal = mx.tril(mx.ones((LENGTH, LENGTH), mx.bool_))
    mask = causal & (mx.arange(LENGTH) >= mx.array(PADDING)[:, None, None, None])
    batched = last(indexer(x, qr, mask))
    found = []
    for row, (keys, padding) in enumerate(zip(batched, PADDING, strict=True)):
        own = (side[row : row + 1, padding:] for side in (x, qr))
        (solo,) = last(indexer(*own, causal[padding:, padding:]))
        found.append((keys, [padding + key for key in solo]))
    return found


def last(selected: Any) -> list[list[int]]:
    """Each row's keys at the last position, sorted."""
    rows = selected.reshape(selected.shape[0], -1, SELECTED)
    return [sorted(row) for row in rows[:, -1].tolist()]
