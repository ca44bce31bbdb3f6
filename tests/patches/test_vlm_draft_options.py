"""``vlm-draft-options``: which options run without the drafter."""

import importlib

import pytest

from mlx_patches.patches.generation.vlm_draft_options import patch, probe
from mlx_patches.probes.batch_invariance import tiny

from ..releases.models import module_or_skip


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({}, None),
        ({"repetition_penalty": 1.0, "logit_bias": {}, "presence_penalty": 0.0}, None),
        ({"repetition_penalty": 1.2}, "repetition_penalty"),
        ({"presence_penalty": -1.0}, "presence_penalty"),
        ({"logit_bias": {3: 5.0}}, "logit_bias"),
        ({"logits_processors": [max]}, "logits_processors"),
    ],
)
def test_options_that_change_logits(options, name):
    assert patch.find_processor(options) == name


@pytest.mark.parametrize(("size", "held"), [(None, None), (0, 0), (1, 2), (2, 2), (5, 5)])
def test_block_sizes(size, held):
    assert patch.hold_a_draft(size) == held


@pytest.mark.parametrize(
    "options",
    [
        {"draft_block_size": 1},
        {"logit_bias": {3: 50.0}},
        {"presence_penalty": 5.0},
        {"logits_processors": [lambda tokens, logits: -logits]},
    ],
)
def test_tokens_are_those_without_drafter(options, ungated, caplog):
    module_or_skip("mlx_vlm.models.qwen3_5")
    module = importlib.import_module("mlx_vlm.generate")
    ungated("vlm-draft-options")
    model = tiny("mlx-vlm", "qwen3_5").module
    drafts = {"draft_model": probe.Drafter(), "draft_kind": "dflash"}
    drafted = probe.decode(module, model, [3, 1, 4], **drafts, **options)
    plain = {name: value for name, value in options.items() if name != "draft_block_size"}
    assert drafted == probe.decode(module, model, [3, 1, 4], **plain)
    assert [record.args[0] for record in caplog.records] == [*plain]
