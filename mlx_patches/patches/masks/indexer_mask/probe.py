"""Lets the indexer of a tiny model select keys for two rows, one padded, and for each alone."""

from typing import Any

from ....probes.kit import Result, Target, mx, tiny_of

LENGTH, PADDING, SELECTED = 8, (0, 2), 3


def probe(target: Target) -> Result:
    """Red where a row selects other keys than alone, or the selection fails."""
    for row, (together, alone) in enumerate(selections(tiny_of(target).module)):
        if together != alone:
            return Result(True, f"row {row} selects {together}, alone {alone}")
    return Result(False, "the rows of a batch select the keys that they select alone")


def selections(module: Any) -> list[tuple[list[int], list[int]]]:
    """For each row the keys that its last token selects in the batch, and alone."""
    indexer = module.model.layers[0].self_attn.indexer
    indexer.index_topk = SELECTED
    hidden, rank = (layer.weight.shape[-1] for layer in (indexer.wk, indexer.wq_b))
    x = mx.random.normal((len(PADDING), LENGTH, hidden), key=mx.random.key(1))
    qr = mx.random.normal((len(PADDING), LENGTH, rank), key=mx.random.key(2))
    causal = mx.tril(mx.ones((LENGTH, LENGTH), mx.bool_))
    mask = causal & (mx.arange(LENGTH) >= mx.array(PADDING)[:, None, None, None])
    together = last(indexer(x, qr, mask))
    found = []
    for row, (keys, padding) in enumerate(zip(together, PADDING, strict=True)):
        own = (side[row : row + 1, padding:] for side in (x, qr))
        (alone,) = last(indexer(*own, causal[padding:, padding:]))
        found.append((keys, [padding + key for key in alone]))
    return found


def last(selected: Any) -> list[list[int]]:
    """Each row's keys at the last position, sorted."""
    rows = selected.reshape(selected.shape[0], -1, SELECTED)
    return [sorted(row) for row in rows[:, -1].tolist()]
