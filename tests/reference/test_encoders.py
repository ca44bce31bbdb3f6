"""The vectors and scores that the lab of encoder endpoints expects are those of transformers."""

import pytest

from mlx_patches.lab.server import encoders
from mlx_patches.lab.server.client import EMBEDDINGS, RERANK


@pytest.mark.parametrize("text", ["", *encoders.TEXTS, encoders.LONG])
def test_vectors_equal_transformers(text, tmp_path):
    transformers = pytest.importorskip("transformers")
    encoders.save(tmp_path / "encoder", EMBEDDINGS)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "encoder")
    model = transformers.AutoModel.from_pretrained(tmp_path / "encoder")
    sent = tokenizer(text, return_tensors="pt", truncation=True, max_length=encoders.LIMIT)
    vector = model(**sent).last_hidden_state[0].mean(0)
    got = (vector / vector.norm()).tolist()
    assert got == pytest.approx(encoders.embed(text), abs=1e-5)


@pytest.mark.parametrize("text", ["", *encoders.TEXTS, encoders.LONG])
def test_scores_equal_transformers(text, tmp_path):
    transformers = pytest.importorskip("transformers")
    encoders.save(tmp_path / "reranker", RERANK)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "reranker")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "reranker")
    cut = {"truncation": True, "max_length": encoders.LIMIT}
    sent = tokenizer([encoders.QUERY], [text], return_tensors="pt", **cut)
    assert model(**sent).logits.sigmoid().item() == pytest.approx(encoders.score(text), abs=1e-5)
