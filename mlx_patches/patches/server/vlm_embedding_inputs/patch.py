"""mlx_vlm.server: embeddings of long texts (BERT) and of short ones (ColBERT, SigLIP) are wrong.

Why: A text is cut at the tokenizer's limit, if it has one. BERT then reads positions beyond its
    table, which are NaN or other memory. A batch is padded to its longest text: ColBERT's answer
    has vectors of pad tokens, and SigLIP, trained with texts padded to all positions, reads another
    position. In a batch, a text without tokens becomes a vector of zeros.
How: The server gets a tokenizer that cuts texts at the model's positions, pads SigLIP's to all of
    them, and refuses a text without tokens with status 400. Vectors of pad tokens are removed.
Upstream: Not fixed in mlx-vlm 0.7.10.
Retire when: The server's tokenizer call has the model's limit and padding.
"""

from typing import Any

from ....core.verbs import Function, Patch, wrap
from ..._shared.refusals import client_error


def embed(released: Function, model: Any, processor: Any, texts: list[str]) -> Any:
    """The server's function, with a tokenizer that fits the model."""
    tokenizer = Tokenizer(getattr(processor, "tokenizer", processor), model)
    vectors, count = released(model, tokenizer, texts)
    return remove_padding(vectors, tokenizer.mask), count


class Tokenizer:
    """A tokenizer that cuts and pads texts as a model needs it, and keeps the last mask."""

    def __init__(self, inner: Any, model: Any):
        self.inner, self.tokenizer = inner, self
        self.mask: list[list[int]] = []
        self.limit = count_positions(model)
        self.padding = "max_length" if getattr(model, "model_type", "") == "siglip" else True

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __call__(self, texts: list[str], *, max_length: int, **options: Any) -> Any:
        options |= {"padding": self.padding, "return_attention_mask": True}
        found = self.inner(texts, max_length=min(max_length, self.limit), **options)
        self.mask = found["attention_mask"].tolist()
        for index, row in enumerate(self.mask):
            if not any(row):
                raise client_error(f"input {index}: the text has no tokens; remove it")
        return found


def count_positions(model: Any) -> int:
    """The number of tokens for which a model has positions; many if it has no table of them."""
    embeddings = getattr(model, "embeddings", None)
    if text := getattr(getattr(model, "text_model", None), "text_model", None):  # SigLIP
        embeddings = text.embeddings
    table = getattr(embeddings, "position_embeddings", None)
    table = table or getattr(embeddings, "position_embedding", None)
    # RoBERTa's positions begin after that of the pad token.
    return table.weight.shape[0] - getattr(embeddings, "padding_idx", -1) - 1 if table else 1 << 30


def remove_padding(vectors: list[Any], mask: list[list[int]]) -> list[Any]:
    """The vectors of texts; if each token has one, without those of pad tokens."""
    if not isinstance(vectors[0][0], list):
        return vectors
    return [
        [vector for vector, real in zip(rows, kept, strict=True) if real]
        for rows, kept in zip(vectors, mask, strict=True)
    ]


PATCH = Patch(
    id="vlm-embedding-inputs",
    targets=wrap("mlx_vlm.server.embeddings:_embed", embed),
)
