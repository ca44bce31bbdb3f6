import importlib

import mlx.core as mx
import pytest

from mlx_patches.lab.scenarios import SCENARIOS, forget_solo_runs
from mlx_patches.lab.walks import engines, walk
from mlx_patches.lab.walks.program import parse
from mlx_patches.patches._shared.row_record import read_column
from mlx_patches.patches.models.ring_cache_batching.patch import (
    build_mask,
    end_prompts,
    unroll_ring,
)

from ..releases.models import build_or_skip, or_skip

WINDOW, PROMPT = 4, 3
WALKS = [
    "mlx-vlm:unlimited_ocr prefill_step_size=3; add row=1 length=5 tokens=12",
    "mlx-vlm:unlimited_ocr prefill_step_size=3; add row=1 length=5 tokens=12; add row=2 length=8"
    " tokens=12",
    "mlx-vlm:unlimited_ocr kv_bits=8; add row=1 text=2 length=1 tokens=12",
]


@pytest.fixture
def ring():
    module = pytest.importorskip("mlx_vlm.models.unlimited_ocr.language")
    made = module.RingSlidingKVCache(WINDOW)
    feed(made, range(PROMPT))
    return made


def feed(ring, places):
    keys = mx.array([float(place) for place in places]).reshape(1, 1, -1, 1)
    ring.update_and_fetch(keys, -keys)


@pytest.mark.parametrize("line", WALKS)
@or_skip()
def test_engine_chunks_keep_prompt_end(line, ungated, beside):
    """Chunks of one token belong to a prompt if they have embeddings."""
    model = build_or_skip("mlx-vlm:unlimited_ocr")
    importlib.import_module("mlx_vlm.generate")
    engines.kinds(model)
    ungated("ring-cache-batching")
    beside("kv-bits-refused")
    assert walk.run(model, parse(line)) == []


@pytest.mark.parametrize("generated", range(3 * WINDOW))
def test_every_token_is_in_place(ring, generated):
    for token in range(generated):
        feed(ring, [PROMPT + token])
    row = unroll_ring(ring)
    end = PROMPT + generated
    oldest = max(PROMPT, end - WINDOW)
    held = [*range(PROMPT), *[0] * (oldest - PROMPT), *range(oldest, end)]
    assert row.offset == end
    assert row.keys[0, 0, :end, 0].tolist() == held
    assert row.values[0, 0, :end, 0].tolist() == [-place for place in held]
    lengths = read_column(row, "lengths", 1)
    assert (lengths is None) if not generated else lengths.tolist() == [[PROMPT]]


@pytest.mark.parametrize("generated", range(1, 3 * WINDOW))
def test_plain_cache_equals_ring(ring, generated):
    for token in range(generated - 1):
        feed(ring, [PROMPT + token])
    plain = importlib.import_module("mlx_vlm.models.cache").KVCache()
    feed(plain, range(PROMPT))
    for place in range(PROMPT, PROMPT + generated - 1):
        build_mask(plain, WINDOW)
        feed(plain, [place])
    seen = build_mask(plain, WINDOW)[0, 0, 0].tolist()
    oldest = max(PROMPT, PROMPT + generated - WINDOW)
    wanted = [place < PROMPT or place >= oldest for place in range(PROMPT + generated)]
    assert seen == wanted


def test_ring_after_several_tokens_is_refused(ring):
    feed(ring, [PROMPT])
    feed(ring, range(PROMPT + 1, PROMPT + 2 * WINDOW - 1))
    with pytest.raises(ValueError, match="several tokens at once"):
        unroll_ring(ring)


def test_ring_keeps_separate_last_token(ring):
    feed(ring, [PROMPT])
    end_prompts([ring])
    for place in range(PROMPT + 1, PROMPT + 1 + 2 * WINDOW):
        feed(ring, [place])
    held = sorted(ring.state[0][0, 0, :, 0].tolist())
    newest = range(PROMPT + 1 + WINDOW, PROMPT + 1 + 2 * WINDOW)
    assert held == [*range(PROMPT + 1), *newest]


def test_plain_cache_with_separate_last_token():
    plain = pytest.importorskip("mlx_vlm.models.cache").KVCache()
    feed(plain, range(PROMPT))
    build_mask(plain, WINDOW)
    feed(plain, [PROMPT])
    end_prompts([plain])
    end = PROMPT + 1 + 2 * WINDOW
    for place in range(PROMPT + 1, end):
        build_mask(plain, WINDOW)
        feed(plain, [place])
    seen = build_mask(plain, WINDOW)[0, 0, 0].tolist()
    assert seen == [place <= PROMPT or place > end - WINDOW for place in range(end + 1)]


def test_decoding_ring_is_unchanged(ring):
    for place in range(PROMPT, PROMPT + 2):
        feed(ring, [place])
    end_prompts([ring, None, (ring, ring)])
    assert ring.prefill_length == PROMPT


@pytest.mark.parametrize("name", ["processors", "engine", "batch-generate", "last-chunk"])
def test_engine_equals_solo(name, ungated):
    model = build_or_skip("mlx-vlm:unlimited_ocr")
    without = SCENARIOS[name](model)
    if ", step 0:" in without.detail:
        pytest.skip(f"another defect of this release, before a ring is full: {without.detail}")
    forget_solo_runs()
    manager = ungated("ring-cache-batching")
    cell = SCENARIOS[name](model)
    assert cell.verdict == "green", cell.detail
    assert not manager.withdrawn


def test_embeddings_in_one_or_two_calls(ungated):
    model = build_or_skip("mlx-vlm:unlimited_ocr")
    manager = ungated("ring-cache-batching")
    tokens = mx.array([[1, 2, 3, 4, 5]])
    embeddings = model.module.model.embed_tokens(tokens)
    logits_of_runs = []
    for first in (5, 4):
        cache = model.make_cache()
        for part in (slice(0, first), slice(first, 5)):
            if tokens[:, part].size:
                logits = model.call(tokens[:, part], cache, inputs_embeds=embeddings[:, part])
        for token in range(cache[0].window_size + 3):
            logits = model.call([[6 + token]], cache)
        logits_of_runs.append(logits[:, -1])
    assert mx.allclose(*logits_of_runs, atol=1e-4).item()
    assert not manager.withdrawn


@pytest.mark.parametrize("embedded", [False, True], ids=["tokens", "embeddings"])
def test_one_token_prompt(embedded, ungated):
    model = build_or_skip("mlx-vlm:unlimited_ocr")
    manager = ungated("ring-cache-batching")
    ring = model.make_cache()
    plain = [importlib.import_module("mlx_vlm.models.cache").KVCache() for _ in ring]
    logits_of_runs = []
    for cache in (ring, plain):
        given = model.module.model.embed_tokens(mx.array([[5]])) if embedded else None
        model.call([[5]], cache, inputs_embeds=given)
        for token in range(ring[0].window_size + 3):
            logits = model.call([[6 + token]], cache)
        logits_of_runs.append(logits[:, -1])
    assert ring[0].prefill_length == 1
    assert mx.allclose(*logits_of_runs, atol=1e-4).item()
    assert not manager.withdrawn
