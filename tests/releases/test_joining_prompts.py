import importlib

import mlx.core as mx
import pytest

from .conftest import is_installed
from .models import build_or_skip

TOKENS = 6
CHUNK = 4
# The lengths of the first prompts, and of those that join after two chunks.
CASES = [([30, 25], [12]), ([30], [12, 9])]
# A family with key-value caches only, and one that also has recurrent caches.
FAMILIES = ["qwen3", "lfm2"]

if not is_installed("mlx-lm"):
    pytest.skip("no mlx-lm, whose engine this is", allow_module_level=True)
generate = importlib.import_module("mlx_lm.generate")
if not hasattr(generate, "PromptProcessingBatch"):
    pytest.skip("this engine lets nobody join a prompt", allow_module_level=True)


@pytest.mark.parametrize("lengths", CASES, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_joining_prompts_equal_solo(family, lengths, beside):
    beside("empty-cache-ops", "arrays-extend")
    model = build_or_skip(f"mlx-lm:{family}").module
    first, late = ([prompt(length) for length in part] for part in lengths)
    assert together(model, first, late) == [generate_solo(model, one) for one in (*first, *late)]


def prompt(length):
    return [1 + (7 * place + 3 * length) % 90 for place in range(length)]


def generate_solo(model, tokens):
    steps = generate.generate_step(mx.array(tokens), model, max_tokens=TOKENS)
    return [int(token) for token, _ in steps]


def together(model, first, late):
    engine = generate.BatchGenerator(model, max_tokens=TOKENS, prefill_step_size=CHUNK)
    order, tokens_of = list(engine.insert(first)), {}
    for turn in range(10 * TOKENS):
        if turn == 2:
            order += engine.insert(late)
        for answer in engine.next()[1]:
            tokens_of.setdefault(answer.uid, []).append(answer.token)
    return [tokens_of.get(uid) for uid in order]
