"""Llama 4's chunks in mlx-vlm: up to 0.6.2 it imports the caches of mlx-lm."""

from __future__ import annotations

from typing import Any

import pytest

from mlx_patches.lab import Family, engine
from mlx_patches.lab.build import build
from mlx_patches.lab.rows import LENGTHS, rows_of
from mlx_patches.lab.scenarios import SCENARIOS
from mlx_patches.patches import catalogue
from mlx_patches.patches.caches.lists import patch as lists
from mlx_patches.probes.fixtures import with_patches

from ..releases.conftest import installed

mx = pytest.importorskip("mlx.core")
pytestmark = pytest.mark.skipif(not installed("mlx-vlm"), reason="no mlx-vlm")

# Patches of other defects that a batch of Llama 4 meets in batch_generate.
OTHERS = (
    "offset-alias",
    "mask-from-cache-list",
    "row-by-row",
    "padded-prompts",
    "extend-solo-batch",
    "padding-nan",
)


def test_a_prompt_alone_and_in_a_batch_generate_the_same_tokens():
    model = build(Family("mlx-vlm", "llama4"))
    with with_patches((*OTHERS, "unknown-kwargs", "chunked-front")):
        cell = SCENARIOS["batch-generate"](model)
    if cell.verdict == "n/a":
        pytest.skip(cell.detail)
    assert cell.verdict == "green", cell.detail


def test_decode_steps_alone_see_the_whole_chunk(ungated):
    """Each step's logits equal those of the whole text, which no cache holds."""
    ungated(catalogue.builtin().get("chunked-front"))
    model = build(Family("mlx-vlm", "llama4"))
    assert same_as_uncached(model)


def test_mutant_that_forgets_the_chunk(ungated, monkeypatch):
    ungated(catalogue.builtin().get("chunked-front"))
    monkeypatch.setattr(lists, "cuts_chunk", lambda cache: False)
    model = build(Family("mlx-vlm", "llama4"))
    cache = model.module.make_cache()[0]
    cache.update_and_fetch(*[mx.zeros((1, 1, 5, 1))] * 2)
    cache.maybe_trim_front()
    if cache.start_position <= 0:
        pytest.skip("the release drops no token of the current chunk")
    assert not same_as_uncached(model)


def same_as_uncached(model: object) -> bool:
    """Whether one row's decode steps, on the model's own caches, give the text's own logits."""
    row = rows_of(model, LENGTHS)[0]
    text = list(row.text)
    cache = model.module.make_cache()
    engine.forget(model)
    out = [model.call([text[:3]], cache)[0, -1]]
    out += [model.call([[token]], cache)[0, -1] for token in text[3:]]
    whole = model.call([text], model.module.make_cache())[0, 2:]
    return mx.abs(mx.stack(out) - whole).max().item() <= 1e-3


def layers_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lists, "convert_to_batch", lambda layer: layer)


def chunks_that_end_with_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    def cuts_window(cache: Any) -> bool:
        left_from = cache.start_position + cache.keys.shape[2] - cache.chunk_size
        return bool(left_from > cache.offset)

    monkeypatch.setattr(lists, "cuts_chunk", cuts_window)


def states_of_another_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        lists, "read_states", lambda cache: [inner.state for inner in reversed(cache.caches)]
    )


MUTANTS = {
    "extend-solo-batch": layers_as_they_are,
    "chunked-front": chunks_that_end_with_the_token,
    "cachelist-state": states_of_another_cache,
}
