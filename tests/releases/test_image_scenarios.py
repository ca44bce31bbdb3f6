"""The scenarios of images with their features: right models, known defects, and planted ones."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from mlx_patches.lab import Cell, Family, NotBuilt, image_scenarios
from mlx_patches.lab.named_scenarios import NAMED
from mlx_patches.lab.whole import IMAGE, LAST, Images, build_whole, embedded, fit
from mlx_patches.probes import NotApplicable

from .conftest import is_tested
from .models import build_or_skip, vlm_engine

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
        embedded(whole.module, tokens, whole.images.inputs(tokens, [seed]))["inputs_embeds"]
        for seed in (3, 4)
    )
    moved = (mx.abs(one - other).max(-1) > 0)[0].tolist()
    first = len(text) + 1
    assert moved == [first <= at < first + len(whole.tokens) - 2 for at in range(len(tokens))]


@pytest.mark.parametrize("reach", [True, False])
def test_pixels_that_move_no_embedding_move_what_goes_beside(reach):
    def embed(ids, pixels, **_):
        made = {"inputs_embeds": mx.zeros((*ids.shape, 2)), "states": pixels * reach}
        return SimpleNamespace(to_dict=lambda: made)

    images = Images(lambda seed: {"pixel_values": mx.full((1, 1), seed)})
    model = SimpleNamespace(get_input_embeddings=embed)
    assert fit(model, [3], images, {"still": 3}).count(IMAGE) == (3 if reach else 0)


@pytest.mark.usefixtures("batches_images", "patched")
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_right_family_is_green(scenario, family):
    cell = run(scenario, family)
    assert cell.verdict == "green", cell.detail


@pytest.mark.usefixtures("batches_images", "patched")
def test_embeddings_of_another_row_are_seen(monkeypatch):
    module = vlm_engine()
    merge = module._merge_prefill_prompt_kwargs

    def swapped(rows, ids, *rest):
        embeds, more = merge(rows, ids, *rest)
        return embeds[::-1], more

    monkeypatch.setattr(module, "_merge_prefill_prompt_kwargs", swapped)
    assert run("features", "llava").verdict == "red"


@pytest.mark.usefixtures("batches_images", "patched")
def test_a_piece_without_its_features_is_seen(monkeypatch):
    batch = vlm_engine().PromptProcessingBatch
    step = batch.prompt_step

    def without_features(self):
        self._inputs_embeds = self._inputs_embeds * 0
        return step(self)

    monkeypatch.setattr(batch, "prompt_step", without_features)
    assert run("features-in-pieces", "llava").verdict == "red"
