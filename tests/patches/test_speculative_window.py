"""``speculative-window`` and ``draft-kept-cache``: turns over kept windows, recurrent models."""

import importlib

import pytest

from mlx_patches.lab import build, families
from mlx_patches.patches.generation.draft_kept_cache.probe import decode, make_caches

from ..releases.models import module_or_skip

PROMPT, MORE = [5, 9, 2, 7, 1, 8, 2, 8, 1, 8, 4], [11, 12, 13]


@pytest.fixture
def generate(ungated):
    module = module_or_skip("mlx_lm.generate", "speculative_generate_step")
    ungated("speculative-window", "draft-kept-cache")
    return module


def tiny(name, seed=0):
    known = {one.name: one for one in families.families("mlx-lm")}
    if name not in known:
        pytest.skip(f"this release has no {name}")
    return build.build(known[name], seed).module


def decode_plain(generate, model, prompt, count):
    mx = importlib.import_module("mlx.core")
    steps = generate.generate_step(mx.array(prompt), model, max_tokens=count)
    return [int(step[0]) for step in steps]


@pytest.mark.parametrize("name", ["gemma3_text", "gpt_oss"])
@pytest.mark.parametrize("length", [2, 9, 30])
def test_turns_start_with_full_windows(name, length, generate):
    model = tiny(name)
    for draft in (tiny(name, 1), model):
        kept, text = make_caches(model, draft), []
        for prompt in (PROMPT, MORE, MORE[:1]):
            text += prompt
            wanted = decode_plain(generate, model, text, length)
            assert decode(generate, model, draft, prompt, kept, length) == wanted
            text += wanted


def test_recurrent_model_is_refused(generate):
    model = tiny("mamba2")
    with pytest.raises(ValueError, match=r"draft model cannot be used with .* (Arrays|Mamba)Cache"):
        decode(generate, model, model, PROMPT, make_caches(model, model), 4)


@pytest.mark.parametrize("name", ["mamba2", "falcon_h1"])
def test_recurrent_draft_model_changes_no_turn(name, generate):
    model, draft = tiny("gemma3_text"), tiny(name)
    kept, text = make_caches(model, draft), []
    for prompt in (PROMPT, MORE):
        text += prompt
        wanted = decode_plain(generate, model, text, 9)
        assert decode(generate, model, draft, prompt, kept, 9) == wanted
        text += wanted
