"""``vllm-rerank-types``: pairs without token types are scored as released."""

import pytest

from mlx_patches.patches.vllm_mlx.vllm_rerank_types.probe import (
    make_weights,
    score,
    tokenize,
    tokenize_untyped,
)

pytest.importorskip("vllm_mlx.rerank_forward")


def test_untyped_pairs_are_unchanged(ungated):
    weights = make_weights()
    released = score(weights, tokenize_untyped)
    ungated("vllm-rerank-types")
    assert score(weights, tokenize_untyped) == released
    assert score(weights, tokenize) != released


def test_model_with_one_type_is_unchanged(ungated):
    weights = make_weights()
    name = "bert.embeddings.token_type_embeddings.weight"
    weights[name] = weights[name][:1]
    released = score(weights, tokenize_untyped)
    ungated("vllm-rerank-types")
    assert score(weights, tokenize_untyped) == released
