"""mlx-embeddings, mlx-vlm, vllm-mlx: XLM-RoBERTa (E5, BGE rerankers) reads invalid positions.

Why: Hosts cut texts at the config's ``max_position_embeddings``, 514. XLM-RoBERTa's positions begin
    after that of the pad token, so that 512 tokens have one. The last two of 514 read memory beyond
    the table, and a score may be NaN. The pairs of a reranker are cut in the same way, unless the
    tokenizer has a limit.
How: A new model's config has the number of tokens that have a position.
Upstream: Not fixed in mlx-embeddings 0.1.0, mlx-vlm 0.7.10, vllm-mlx 0.6.0 and Rapid-MLX 0.16.10.
Retire when: The hosts cut a text at the tokenizer's limit too.
"""

from types import SimpleNamespace
from typing import Any

from ....core.verbs import Patch, after, result


def limit_tokens(model: Any, /) -> None:
    """Let a new model's config have the number of tokens that have a position."""
    model.config.max_position_embeddings -= count_reserved(model.config)


def limit_pairs(length: int, config: Any) -> int:
    """The length of mlx_vlm.server's pairs, with which each token has a position."""
    if not is_roberta(config.model_type):
        return length
    return min(length, int(config.max_position_embeddings) - count_reserved(config))


def limit_classifier(config: dict[str, Any]) -> None:
    """Limit the tokens of vllm-mlx's rerankers, whose config is a dictionary."""
    if is_roberta(config.get("model_type")):
        config["max_position_embeddings"] -= count_reserved(
            SimpleNamespace(**{"pad_token_id": 1} | config)
        )


def is_roberta(model_type: Any) -> bool:
    return str(model_type).replace("-", "_") in ("roberta", "xlm_roberta")


def count_reserved(config: Any) -> int:
    """The number of rows in the table of positions that no token has."""
    return int(config.pad_token_id) + 1


PATCH = Patch(
    id="roberta-limit",
    every_model=True,
    targets=(
        *after("mlx_embeddings.models.xlm_roberta:Model.__init__", limit_tokens),
        *result("mlx_vlm.server.reranking:_sequence_max_length", limit_pairs),
        *after("vllm_mlx.rerank:_MLXClassifierWrapper.__init__", limit_classifier),
    ),
)
