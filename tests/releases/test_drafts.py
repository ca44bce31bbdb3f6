"""MTP drafters of mlx-vlm in a batch: the tokens are those without a drafter."""

import importlib
import random
from types import SimpleNamespace

import mlx.core as mx
import pytest

import mlx_patches
from mlx_patches.core.distributions import source_file
from mlx_patches.lab import build, families

DRAFTER = "mlx_vlm.speculative.drafters.qwen3_5_mtp"
pytestmark = pytest.mark.skipif(not source_file(DRAFTER), reason="no such drafter here")
# Few tokens, so that a random drafter is sometimes right.
VOCABULARY, TOKENS = 7, 24
PROMPTS = [[3, 1, 4, 0, 2], [1, 2, 3], [4, 2, 0, 4, 3, 2, 1, 0]]


@pytest.fixture
def others():
    mlx_patches.apply(profile="safe", without=["vlm-draft-padding"])
    yield
    mlx_patches.restore()


@pytest.fixture
def model(others, ungated):
    ungated("vlm-draft-padding")
    (family,) = (one for one in families.families("mlx-vlm") if one.name == "qwen3_5")
    return build.build(family, sizes={"vocab_size": VOCABULARY}).module


def make_drafter(model):
    module = importlib.import_module(DRAFTER)
    config = module.config.Qwen3_5MTPConfig(block_size=3)
    config.text_config = getattr(model, "args", None) or model.config
    config.text_config.mtp_num_hidden_layers = 1
    drafter = module.qwen3_5_mtp.Qwen3_5MTPDraftModel(config)
    build.draw_weights(drafter, 5)
    return drafter


def script(drafter, generator, answers, known):
    """Give the drafter the answers, with some errors."""
    released, draw = type(drafter).draft_block, random.Random(1)

    def draft(*args, **options):
        batch, drafts = generator._generation_batch, released(drafter, *args, **options)
        active = [u for u, done in zip(batch._all_uids, batch._finished, strict=True) if not done]
        rests = [[*known[list(answers).index(uid)], 0, 0][len(answers[uid]) :] for uid in active]
        rows = [[(t + (draw.random() < 0.3)) % VOCABULARY for t in one[:2]] for one in rests]
        return mx.array(rows, drafts.dtype)[:, : drafts.shape[1]]

    object.__setattr__(drafter, "draft_block", draft)


def generate(model, prompts, drafter=None, joining=(), known=None):
    """The answers to prompts, and to those that join after three steps.

    ``known``: the answers that the drafter knows.
    """
    ar = importlib.import_module("mlx_vlm.generate.ar")
    stopping = type("", (), {"__call__": lambda *_: False, "add_eos_token_ids": lambda *_: None})
    tokenizer = SimpleNamespace(stopping_criteria=stopping())
    drafts = {"draft_model": drafter, "draft_kind": "mtp"} if drafter else {}
    generator = ar.BatchGenerator(
        model, SimpleNamespace(tokenizer=tokenizer), greedy_sampling=True, **drafts
    )
    answers = {}
    if known:
        script(drafter, generator, answers, known)

    def insert(more):
        embedded = [{"inputs_embeds": model.model.embed_tokens(mx.array([one]))} for one in more]
        answers.update((uid, []) for uid in generator.insert(more, TOKENS, embedded))

    insert(prompts)
    step = 0
    while any(len(answer) < TOKENS for answer in answers.values()):
        step += 1
        if step == 3 and joining:
            insert(joining)
        for one in (one for responses in generator.next() for one in responses):
            if hasattr(one, "token"):  # not the progress of a prompt
                answers[one.uid].append(one.token)
    return [answer[:TOKENS] for answer in answers.values()]


@pytest.mark.parametrize("knows", [False, True], ids=["random", "mostly-right"])
def test_drafts_change_no_token(model, knows):
    solo = [generate(model, [prompt])[0] for prompt in PROMPTS]
    drafter, accepted = make_drafter(model), 0.0
    for prompts, joining in ((PROMPTS, []), (PROMPTS[:2], PROMPTS[2:])):
        assert generate(model, prompts, drafter, joining, solo if knows else None) == solo
        accepted += sum(drafter.accept_lens)
    assert accepted > 0
