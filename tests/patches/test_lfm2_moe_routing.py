import importlib
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest

from mlx_patches.patches.models.lfm2_moe_routing import patch as lfm2_routing
from mlx_patches.patches.models.lfm2_moe_routing import probe as lfm2

from ..releases.models import present

LFM2 = present("mlx_lm.models.lfm2_moe", "mlx_vlm.models.lfm2.language")
VERIFIER = present("mlx_vlm.models.lfm2.speculative_verifier")


def inputs(width=16, rows=2, length=5):
    return mx.random.normal((rows, length, width), key=mx.random.key(3))


def is_close(answer, wanted):
    return (mx.abs(answer - wanted).max() / mx.abs(wanted).max()).item() <= 1e-5


@pytest.mark.parametrize("name", LFM2)
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("count", [1, 3, 4, 8])
def test_lfm2_equals_reference(name, biased, normalized, count, ungated):
    ungated("lfm2-moe-routing")
    options = {"use_expert_bias": biased, "norm_topk_prob": normalized}
    module = importlib.import_module(name)
    block = lfm2.make(module, num_experts_per_tok=count, **options)
    assert is_close(block(inputs()), lfm2.compute_output(block, inputs()))


@pytest.mark.parametrize("name", LFM2)
def test_bfloat16_is_kept(name, ungated):
    block = lfm2.make(importlib.import_module(name))
    block.set_dtype(mx.bfloat16)
    block.expert_bias = block.expert_bias.astype(mx.float32)
    ungated("lfm2-moe-routing")
    assert block(inputs().astype(mx.bfloat16)).dtype == mx.bfloat16


@pytest.mark.parametrize("name", VERIFIER)
def test_drafts_are_verified_like_solo(name, ungated):
    ungated("lfm2-moe-routing")
    language = importlib.import_module("mlx_vlm.models.lfm2.language")
    kind = importlib.import_module(name).Lfm2ExactSpeculativeVerifier
    verifier, x = kind.__new__(kind), inputs(rows=1)
    block = lfm2.make(language)
    solo = mx.concatenate([block(x[:, i : i + 1]) for i in range(x.shape[1])], axis=1)
    assert mx.array_equal(verifier._feed_forward(block, x), solo)
    plain = nn.Linear(16, 16)  # a block that the verifier has no special code for
    assert mx.array_equal(verifier._feed_forward(plain, x), plain(x))


def experts_by_their_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    def choose_experts(block: Any, x: Any) -> Any:
        scores = mx.softmax(block.gate(x), axis=-1) + block.expert_bias
        chosen = mx.argpartition(scores, kth=-block.top_k, axis=-1)[..., -block.top_k :]
        weights = mx.take_along_axis(scores, chosen, axis=-1)
        return chosen, weights / weights.sum(axis=-1, keepdims=True)

    monkeypatch.setattr(lfm2_routing, "choose_experts", choose_experts)


MUTANTS = {"lfm2-moe-routing": experts_by_their_bias}
