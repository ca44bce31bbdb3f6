"""vllm-mlx: BERT rerankers return wrong scores, the document is read as part of the query.

Why: BERT cross-encoders, such as ms-marco-MiniLM, distinguish a query from a document by token
    types. The engine drops those of the tokenizer, and the model takes 0 for all tokens.
How: The type of each token is added to its id, as a multiple of the vocabulary's size, when a pair
    is tokenized. The model gets the ids without it, and a table of words that adds the embedding of
    the type.
Upstream: Not fixed in vllm-mlx 0.6.0.
Retire when: The model gets the tokenizer's token types.
"""

from typing import Any

from ....core.verbs import Function, Patch, mx, result, wrap

# More than any vocabulary has.
STEP = 1 << 24
_WORDS = ".embeddings.word_embeddings.weight"


def join_types(pair: Any) -> Any:
    """A tokenized pair whose ids carry their types."""
    types = pair.get("token_type_ids")
    if types is not None:
        pair["input_ids"] = pair["input_ids"] + types * STEP
    return pair


def split_types(
    released: Function, input_ids: Any, attention_mask: Any, weights: Any, config: Any
) -> Any:
    """The model's function, with ids without types, and with words that have them."""
    types = input_ids // STEP
    changed = {
        key: Words(words, weights[key.replace(".word_", ".token_type_")], types)
        for key, words in weights.items()
        if key.endswith(_WORDS)
    }
    return released(input_ids % STEP, attention_mask, {**weights, **changed}, config)


class Words:
    """A table of words, whose rows have the difference of their types from the first type."""

    def __init__(self, words: Any, table: Any, types: Any):
        self.words, self.more = words, mx.take(table - table[:1], types, axis=0)

    def __getitem__(self, ids: Any) -> Any:
        return self.words[ids] + self.more


PATCH = Patch(
    id="vllm-rerank-types",
    targets=(
        *result("vllm_mlx.rerank:SigmoidAdapter.tokenize_pair", join_types, supports=True),
        *wrap("vllm_mlx.rerank_forward:classifier_forward", split_types),
    ),
)
