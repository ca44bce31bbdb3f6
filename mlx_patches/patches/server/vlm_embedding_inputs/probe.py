"""Embeds texts of one letter per token through the server's function."""

from types import SimpleNamespace
from typing import Any

from ....probes.kit import Result, Target, module_with, mx

PAD, POSITIONS = 0, 6


def probe(target: Target) -> Result:
    """Red if a text is cut or padded for another model, or has vectors of pad tokens."""
    module = module_with(target)
    for model, texts, want in (
        (Table(), ["abcdefgh", "ab"], [[6], [2]]),
        (Siglip(), ["ab"], [[6]]),
        (Colbert(), ["abc", "a"], [[[97], [98], [99]], [[97]]]),
    ):
        vectors, _ = module._embed(model, tokenize, texts)
        if vectors != want:
            return Result(True, f"{type(model).__name__}: {texts} are {vectors}, not {want}")
    try:
        return Result(
            True, f"a text without tokens is {module._embed(Table(), tokenize, ['', 'a'])}"
        )
    except ValueError as error:
        return Result(False, str(error))


def tokenize(texts: list[str], padding: Any, max_length: int, **options: Any) -> dict[str, Any]:
    """A tokenizer whose tokens are letters."""
    import numpy

    rows = [[ord(one) for one in text[:max_length]] for text in texts]
    width = max_length if padding == "max_length" else max(map(len, rows))
    ids = numpy.array([row + [PAD] * (width - len(row)) for row in rows])
    return {"input_ids": ids, "attention_mask": (ids != PAD).astype(int)}


class Table:
    """A model with a table of positions, whose embedding is a text's length."""

    model_type = "bert"

    def __init__(self) -> None:
        table = SimpleNamespace(weight=mx.zeros((POSITIONS, 1)))
        self.embeddings = SimpleNamespace(position_embeddings=table)

    def __call__(self, ids: Any, attention_mask: Any) -> Any:
        return SimpleNamespace(text_embeds=attention_mask.sum(axis=1, keepdims=True))


class Siglip:
    """A model whose embedding is the number of positions."""

    model_type = "siglip"

    def __init__(self) -> None:
        table = SimpleNamespace(weight=mx.zeros((POSITIONS, 1)))
        embeddings = SimpleNamespace(position_embedding=table)
        self.text_model = SimpleNamespace(text_model=SimpleNamespace(embeddings=embeddings))

    def __call__(self, ids: Any, attention_mask: Any) -> Any:
        return SimpleNamespace(text_embeds=mx.full((len(ids), 1), ids.shape[1]))


class Colbert:
    """A model with a vector for each token."""

    model_type = "lfm2_colbert"

    def __call__(self, ids: Any, attention_mask: Any) -> Any:
        return SimpleNamespace(text_embeds=ids[..., None])
