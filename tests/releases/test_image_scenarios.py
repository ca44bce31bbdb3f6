import threading
from types import SimpleNamespace

import mlx.core as mx
import pytest

from mlx_patches.lab import Cell, Family, NotBuilt, image_scenarios, server_thread
from mlx_patches.lab.named_scenarios import NAMED
from mlx_patches.lab.whole import IMAGE, LAST, Images, build_whole, embed_prompt, fit
from mlx_patches.probes import NotApplicable

from .conftest import is_needed, is_tested
from .models import build_or_skip, vlm_engine

SCENARIOS = ("features", "features-chunked", "features-served")
# Families whose embedding step returns only embeddings, or positions, or layers of features.
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
def test_image_moves_only_its_embeddings(family):
    try:
        whole = build_whole(Family("mlx-vlm", family))
    except NotBuilt as reason:
        pytest.skip(str(reason))
    text = [1, 2, 3]
    tokens = [*text, *whole.tokens, LAST]
    one, other = (
        embed_prompt(whole.module, tokens, whole.images.inputs(tokens, [seed]))["inputs_embeds"]
        for seed in (3, 4)
    )
    moved = (mx.abs(one - other).max(-1) > 0)[0].tolist()
    first = len(text) + 1
    assert moved == [first <= at < first + len(whole.tokens) - 2 for at in range(len(tokens))]


@pytest.mark.parametrize("reach", [True, False])
def test_pixels_can_move_other_inputs(reach):
    def embed(ids, pixels, **_):
        made = {"inputs_embeds": mx.zeros((*ids.shape, 2)), "states": pixels * reach}
        return SimpleNamespace(to_dict=lambda: made)

    images = Images(lambda seed: {"pixel_values": mx.full((1, 1), seed)})
    model = SimpleNamespace(get_input_embeddings=embed)
    assert fit(model, [3], images, {"still": 3}).count(IMAGE) == (3 if reach else 0)


@pytest.mark.usefixtures("batches_images", "patched")
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_right_family_is_green(scenario, family):
    cell = run(scenario, family)
    assert cell.verdict == "green", cell.detail


@pytest.mark.usefixtures("batches_images")
def test_served_features_as_released():
    affected = is_needed("deepstack-rows")
    assert run("features-served", "qwen3_vl").verdict == ("red" if affected else "green")


@pytest.mark.usefixtures("batches_images", "patched")
def test_swapped_embeddings_are_found(monkeypatch):
    module = vlm_engine()
    merge = module._merge_prefill_prompt_kwargs

    def swap_rows(rows, ids, *rest):
        embeds, more = merge(rows, ids, *rest)
        return embeds[::-1], more

    monkeypatch.setattr(module, "_merge_prefill_prompt_kwargs", swap_rows)
    assert run("features", "llava").verdict == "red"


@pytest.mark.usefixtures("batches_images", "patched")
def test_missing_features_are_found(monkeypatch):
    batch = vlm_engine().PromptProcessingBatch
    step = batch.prompt_step

    def without_features(self):
        self._inputs_embeds = self._inputs_embeds * 0
        return step(self)

    monkeypatch.setattr(batch, "prompt_step", without_features)
    assert run("features-chunked", "llava").verdict == "red"


@pytest.fixture
def server(batches_images, patched):
    kind, before = server_thread.response_generator(), set(threading.enumerate())
    yield kind
    assert not set(threading.enumerate()) - before


def test_foreign_embeddings_are_found(server, monkeypatch):
    embed, seen = server._gpu_embed, []

    def of_the_one_before(self, raw_inputs, *args, **kwargs):
        seen.append(raw_inputs)
        pixels = {"pixel_values": seen[2]["pixel_values"]} if len(seen) == 5 else {}
        return embed(self, {**raw_inputs, **pixels}, *args, **kwargs)

    monkeypatch.setattr(server, "_gpu_embed", of_the_one_before)
    cell = run("features-served", "llava")
    assert (cell.verdict, cell.detail[:6]) == ("red", "row 4,")


def test_cancelled_neighbour_is_found(server, monkeypatch):
    cancel, left = server._cancel, []

    def cancel_the_next(self, uid):
        left.append(uid)
        cancel(self, uid + 1 if len(left) == 1 else uid)

    monkeypatch.setattr(server, "_cancel", cancel_the_next)
    cell = run("features-served", "llava")
    assert left
    assert (cell.verdict, cell.detail) == ("red", "row 3: 4 tokens instead of 12")


def test_leaving_client_is_removed(server, monkeypatch):
    batch, removed = vlm_engine().BatchGenerator, []
    remove = batch.remove

    def note_removal(self, uid, *args):
        removed.append((uid, uid in self._generation_batch.uids))
        return remove(self, uid, *args)

    monkeypatch.setattr(batch, "remove", note_removal)
    assert run("features-served", "llava").verdict == "green"
    assert [there for _, there in removed] == [True]
