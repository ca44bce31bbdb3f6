"""``roberta-limit``: an overlong pair is scored by its beginning."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from mlx_patches.patches.positions.roberta_limit.probe import PAD, ROWS, TOKENIZER
from mlx_patches.probes.encoders import build_encoder

from ..releases.models import module_or_skip

MODULE = "mlx_vlm.models.xlm_roberta.xlm_roberta"


def tokenize(queries, documents, max_length, **options):
    """A tokenizer of letters."""
    texts = [
        [5 + ord(one) % 50 for one in q + d][:max_length]
        for q, d in zip(queries, documents, strict=True)
    ]
    width = max(map(len, texts))
    ids = [text + [PAD] * (width - len(text)) for text in texts]
    mask = [[1] * len(text) + [0] * (width - len(text)) for text in texts]
    return {"input_ids": np.array(ids), "attention_mask": np.array(mask)}


class Tokenizer(SimpleNamespace):
    __call__ = staticmethod(tokenize)


def test_long_pair_beside_short_ones_is_cut_at_the_last_position(ungated):
    module_or_skip(MODULE, "SequenceClassificationModel")
    server = module_or_skip("mlx_vlm.server.reranking", "_score_sequence_batch")
    ungated("roberta-limit")
    sizes = {"pad_token_id": PAD, "max_position_embeddings": ROWS, "num_labels": 1}
    model = build_encoder(MODULE, kind="SequenceClassificationModel", **sizes)
    model.config.model_type = "xlm-roberta"

    def score(*documents):
        items = [SimpleNamespace(text=one) for one in documents]
        tokenizer = Tokenizer(**vars(TOKENIZER))
        found = server._score_sequence_batch(model, tokenizer, model.config, items[0], items)
        return found[0]

    fits, long = "b" * (ROWS - PAD - 2), "b" * 90
    batch = score("a", fits, long, "")
    assert not any(map(math.isnan, batch))
    assert batch[1] == pytest.approx(batch[2], abs=1e-6)
    assert batch == pytest.approx([score("a", one)[1] for one in ("a", fits, long, "")], abs=1e-6)
