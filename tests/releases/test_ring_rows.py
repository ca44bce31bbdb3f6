"""Ring caches that join a batch, beyond the probe: the order of tokens, and refused rings."""

from __future__ import annotations

import importlib

import pytest

from mlx_patches.patches.caches.row_record import read_column
from mlx_patches.patches.models.ring_rows import in_order, ring_mask

mx = pytest.importorskip("mlx.core")
WINDOW, PROMPT = 4, 3


@pytest.fixture
def ring():
    module = pytest.importorskip("mlx_vlm.models.unlimited_ocr.language")
    made = module.RingSlidingKVCache(WINDOW)
    feed(made, range(PROMPT))
    return made


def feed(ring, places):
    """Feed a ring tokens whose keys are their positions."""
    keys = mx.array([float(place) for place in places]).reshape(1, 1, -1, 1)
    ring.update_and_fetch(keys, -keys)


@pytest.mark.parametrize("generated", range(3 * WINDOW))
def test_every_token_that_is_held_is_in_its_place(ring, generated):
    for token in range(generated):
        feed(ring, [PROMPT + token])
    row = in_order(ring)
    end = PROMPT + generated
    oldest = max(PROMPT, end - WINDOW)
    held = [*range(PROMPT), *[0] * (oldest - PROMPT), *range(oldest, end)]
    assert row.offset == end
    assert row.keys[0, 0, :end, 0].tolist() == held
    assert row.values[0, 0, :end, 0].tolist() == [-place for place in held]
    lengths = read_column(row, "lengths", 1)
    assert (lengths is None) if not generated else lengths.tolist() == [[PROMPT]]


@pytest.mark.parametrize("generated", range(1, 3 * WINDOW))
def test_a_plain_cache_shows_what_a_ring_holds(ring, generated):
    for token in range(generated - 1):
        feed(ring, [PROMPT + token])
    plain = importlib.import_module("mlx_vlm.models.cache").KVCache()
    feed(plain, range(PROMPT))
    for place in range(PROMPT, PROMPT + generated - 1):
        ring_mask(plain, WINDOW)
        feed(plain, [place])
    seen = ring_mask(plain, WINDOW)[0, 0, 0].tolist()
    oldest = max(PROMPT, PROMPT + generated - WINDOW)
    wanted = [place < PROMPT or place >= oldest for place in range(PROMPT + generated)]
    assert seen == wanted


def test_a_ring_that_took_several_tokens_at_once_is_refused(ring):
    feed(ring, [PROMPT])
    feed(ring, range(PROMPT + 1, PROMPT + 2 * WINDOW - 1))
    with pytest.raises(ValueError, match="several tokens at once"):
        in_order(ring)
