"""Merges rows of LongCat Flash Ngram with histories of one, two and five tokens."""

from types import SimpleNamespace

from ....probes.kit import Result, Target, import_module, module_of, mx

_HISTORIES = (1, 2, 5)
_NEXT = 7


def probe(target: Target) -> Result:
    """Red if they do not merge, or the next embeddings differ from those of solo runs."""
    module = module_of(target)
    package = target.module.partition(".")[0]
    caches = import_module(f"{package}.models.cache")
    args = SimpleNamespace(
        hidden_size=12,
        vocab_size=16,
        ngram_vocab_size_ratio=2,
        emb_neighbor_num=4,
        emb_split_num=1,
        oe_vocab_size_ratio=2,
        oe_neighbor_num=4,
        oe_split_num=1,
    )
    mx.random.seed(0)
    embedding = module.NgramEmbedding(args)
    rows = [caches.ArraysCache(size=1) for _ in _HISTORIES]
    for row, history in zip(rows, _HISTORIES, strict=True):
        embedding(mx.arange(1, history + 1)[None], cache=row)
    try:
        batch = type(rows[0]).merge(rows)
    except ValueError as error:
        return Result(True, f"histories of {_HISTORIES} tokens: {error}")
    token = mx.array([[_NEXT]])
    batched = embedding(mx.concatenate([token] * len(rows)), cache=batch).tolist()
    for number, row in enumerate(rows):
        if embedding(token, cache=row).tolist() != batched[number : number + 1]:
            return Result(True, f"the embedding after {_HISTORIES[number]} tokens differs")
    return Result(False, "embeddings in a batch equal those of solo runs")
