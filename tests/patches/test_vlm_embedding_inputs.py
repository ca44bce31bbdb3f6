"""``vlm-embedding-inputs``: texts are cut and padded for their model."""

import pytest

from mlx_patches.patches.server.vlm_embedding_inputs import patch
from mlx_patches.patches.server.vlm_embedding_inputs.probe import Colbert, Table, tokenize


@pytest.fixture
def embed(ungated):
    module = pytest.importorskip("mlx_vlm.server.embeddings")
    ungated("vlm-embedding-inputs")
    return lambda model, texts: module._embed(model, tokenize, texts)


@pytest.mark.parametrize("index", [0, 1])
def test_text_without_tokens_is_refused_by_its_place(embed, index):
    texts = ["a", "b"]
    texts[index] = ""
    with pytest.raises(ValueError, match=f"^input {index}: the text has no tokens; remove it"):
        embed(Table(), texts)


def test_usage_counts_tokens(embed):
    assert embed(Colbert(), ["abc", "a"])[1] == 4


@pytest.mark.parametrize("mask", [[[1, 1, 0]], [[0, 1, 1]]])
def test_vectors_of_pad_tokens_are_removed_on_either_side(mask):
    rows = [[[float(one)] for one in mask[0]]]
    assert patch.remove_padding(rows, mask) == [[[1.0], [1.0]]]


def test_other_attributes_are_those_of_the_tokenizer():
    tokenizer = patch.Tokenizer(tokenize, object())
    assert tokenizer.__name__ == "tokenize"
    assert tokenizer.tokenizer is tokenizer
