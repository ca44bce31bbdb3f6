"""The scenarios of images with their features: right models, known defects, and planted ones."""

from __future__ import annotations

import importlib

import pytest

from mlx_patches.lab import Cell, Family, NotBuilt, image_scenarios
from mlx_patches.lab.named_scenarios import NAMED
from mlx_patches.lab.whole import LAST, build_whole, embedded
from mlx_patches.probes import NotApplicable

from .conftest import is_tested
from .models import build_or_skip

mx = pytest.importorskip("mlx.core")
SCENARIOS = ("features", "features-in-pieces")
# Families whose embedding step returns embeddings alone, or positions, or layers of features.
FAMILIES = ("llava", "qwen2_5_vl", "qwen3_vl")


@pytest.fixture(autouse=True)
def of_mlx_vlm():
    if not is_tested("mlx-vlm"):
        pytest.skip("this set tests another package")


@pytest.fixture
def batches_images():
    try:
        image_scenarios.embedding_step()
    except NotApplicable as reason:
        pytest.skip(str(reason))


def run(scenario: str, family: str) -> Cell:
    return NAMED[scenario](build_or_skip(f"mlx-vlm:{family}"))


@pytest.mark.parametrize("family", FAMILIES)
def test_an_image_moves_the_embeddings_of_its_tokens_alone(family):
    try:
        whole = build_whole(Family("mlx-vlm", family))
    except NotBuilt as reason:
        pytest.skip(str(reason))
    text = [1, 2, 3]
    tokens = [*text, *whole.tokens, LAST]
    one, other = (
        embedded(whole.module, tokens, whole.images(tokens, [seed]))["inputs_embeds"]
        for seed in (3, 4)
    )
    moved = (mx.abs(one - other).max(-1) > 0)[0].tolist()
    first = len(text) + 1
    assert moved == [first <= at < first + len(whole.tokens) - 2 for at in range(len(tokens))]


@pytest.mark.usefixtures("batches_images", "patched")
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_right_family_is_green(scenario, family):
    cell = run(scenario, family)
    assert cell.verdict == "green", cell.detail


def generate_module():
    """The module of mlx-vlm that joins the arguments of prompts."""
    for name in ("mlx_vlm.generate.ar", "mlx_vlm.generate"):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError:
            continue
    raise AssertionError("mlx-vlm has no generate module")


@pytest.mark.usefixtures("batches_images", "patched")
def test_embeddings_of_another_row_are_seen(monkeypatch):
    module = generate_module()
    merge = module._merge_prefill_prompt_kwargs

    def swapped(rows, ids, *rest):
        embeds, more = merge(rows, ids, *rest)
        return embeds[::-1], more

    monkeypatch.setattr(module, "_merge_prefill_prompt_kwargs", swapped)
    assert run("features", "llava").verdict == "red"


@pytest.mark.usefixtures("batches_images", "patched")
def test_a_piece_without_its_features_is_seen(monkeypatch):
    batch = generate_module().PromptProcessingBatch
    step = batch.prompt_step

    def without_features(self):
        self._inputs_embeds = self._inputs_embeds * 0
        return step(self)

    monkeypatch.setattr(batch, "prompt_step", without_features)
    assert run("features-in-pieces", "llava").verdict == "red"
