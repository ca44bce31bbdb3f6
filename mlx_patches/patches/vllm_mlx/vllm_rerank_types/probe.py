"""Scores two documents with a tiny BERT, whose words of documents differ from those of queries."""

from typing import Any

from ....probes.kit import Result, Target, import_module, module_of, mx, require, require_own

SIZE, WORDS = 16, 32
# The words of documents; those of the query are lower.
FIRST = 20


def probe(target: Target) -> Result:
    """Red if the scores are not those of documents whose words have the second type's embedding."""
    require(target)
    require_own(target)  # the tokenization is a supporting target
    module_of(target)
    weights = make_weights()
    table = weights["bert.embeddings.token_type_embeddings.weight"]
    words = weights["bert.embeddings.word_embeddings.weight"]
    is_document = (mx.arange(WORDS) >= FIRST)[:, None]
    typed = mx.where(is_document, words + table[1] - table[0], words)
    scores = score(weights, tokenize)
    want = score(weights | {"bert.embeddings.word_embeddings.weight": typed}, tokenize_untyped)
    off = max(abs(one - other) for one, other in zip(scores, want, strict=True))
    return Result(off > 1e-4, f"scores {scores}, with token types {want}")


def score(weights: dict[str, Any], tokenizer: Any) -> list[float]:
    module: Any = import_module("vllm_mlx.rerank")
    config = {"hidden_size": SIZE, "num_attention_heads": 2, "num_hidden_layers": 1}
    engine = module.RerankEngine("bert")
    engine._model = module._MLXClassifierWrapper(config, weights, 1)
    engine._tokenizer, engine._adapter = tokenizer, module.SigmoidAdapter()
    scores: list[float] = engine.score_pairs("query", ["abc", "abcdefgh"])[0]
    return scores


def tokenize(query: str, document: str, **options: Any) -> dict[str, Any]:
    """A tokenizer whose tokens are letters."""
    import numpy

    ids = [ord(one) % 16 for one in query] + [FIRST + ord(one) - ord("a") for one in document]
    types = [0] * len(query) + [1] * len(document)
    return {
        "input_ids": numpy.array([ids]),
        "attention_mask": numpy.ones((1, len(ids)), int),
        "token_type_ids": numpy.array([types]),
    }


def tokenize_untyped(query: str, document: str, **options: Any) -> dict[str, Any]:
    found = tokenize(query, document)
    del found["token_type_ids"]
    return found


def make_weights() -> dict[str, Any]:
    """Random weights of a BERT with one layer and a classifier."""
    layer = "encoder.layer.0"
    shapes: dict[str, tuple[int, ...]] = {
        f"bert.embeddings.{name}_embeddings.weight": (count, SIZE)
        for name, count in (("word", WORDS), ("position", 64), ("token_type", 2))
    }
    for name, out, given in (
        *((f"bert.{layer}.attention.self.{one}", SIZE, SIZE) for one in ("query", "key", "value")),
        (f"bert.{layer}.attention.output.dense", SIZE, SIZE),
        (f"bert.{layer}.intermediate.dense", 24, SIZE),
        (f"bert.{layer}.output.dense", SIZE, 24),
        ("bert.pooler.dense", SIZE, SIZE),
        ("classifier", 1, SIZE),
    ):
        shapes |= {f"{name}.weight": (out, given), f"{name}.bias": (out,)}
    for place in ("embeddings", f"{layer}.attention.output", f"{layer}.output"):
        shapes |= {f"bert.{place}.LayerNorm.{part}": (SIZE,) for part in ("weight", "bias")}
    mx.random.seed(0)
    return {name: mx.random.normal(shape) for name, shape in shapes.items()}
