"""Images with bidirectional attention: prompt cuts, padded rows, chunks and batches."""

from __future__ import annotations

from types import SimpleNamespace

import mlx.core as mx
import pytest

from mlx_patches.lab import image_scenarios
from mlx_patches.patches.masks.gemma_image_blocks import patch
from mlx_patches.patches.masks.gemma_image_blocks.chunks import fit_chunk, fit_chunks, splits_image
from mlx_patches.probes.batch_invariance import tiny

from ..releases.models import or_skip


def images(*rows):
    return mx.array([[token == "#" for token in row] for row in rows])


@pytest.mark.parametrize(
    "rows, size, expected",
    [
        (("..####....",), 4, 2),
        (("..####....",), 6, 6),
        (("..####....",), 20, 9),
        (("####......",), 3, 4),
        (("..##......", ".....###.."), 7, 5),
        (("..#.#.....",), 4, 4),
        (("..########",), 5, 2),
        (("##########",), 5, None),
    ],
)
def test_next_chunk_ends_between_images(rows, size, expected):
    assert fit_chunk(images(*rows), size) == expected


@pytest.mark.parametrize(
    "row, size, expected",
    [
        ("..........", 4, 4),
        ("..####....", 8, 8),
        ("..####....", 5, None),
        ("..##......", 3, 2),
        ("...######.", 5, None),
        ("..........##", 8, None),
    ],
)
def test_all_chunks_end_between_images(row, size, expected):
    assert fit_chunks(images(row), size) == expected


def test_images_attend_inside_rows():
    visual = images("..##..", "......")
    assert [splits_image(visual, column) for column in range(-1, 8)] == [
        *[False] * 4,
        True,
        *[False] * 4,
    ]

    # A row's padding is hidden by the mask, and stays so.
    visual = images("..##.", ".##..")
    left = mx.array([0, 1])[:, None, None, None] <= mx.arange(5)
    causal = (mx.arange(5)[:, None] >= mx.arange(5)) & left
    shown = patch.show_images(causal, visual)
    assert (shown & ~causal).sum().item() == 2
    assert shown[0, 0, 2, 3].item() and shown[1, 0, 1, 2].item()
    assert not shown[1, 0, :, 0].any().item()


def test_window_hides_the_beginning_of_a_longer_image():
    # Like Gemma's published code; transformers up to 5.8 also shows the tokens before the window.
    behind = mx.arange(5)[:, None] - mx.arange(5)
    shown = patch.show_images((behind >= 0) & (behind < 2), images("#####"))
    assert shown[0, 0].tolist() == (behind < 2).tolist()


def test_images_of_molmo_are_one_block():
    visual = images("#..#.")
    assert patch.find_blocks(visual, "molmo2").tolist() == [[True] * 4 + [False]]
    assert patch.find_blocks(visual, "gemma3") is visual
    causal = mx.tril(mx.ones((5, 5), dtype=mx.bool_))
    shown = patch.show_images(causal, visual, joined=True)[0, 0].tolist()
    assert shown[0] == [True, False, False, True, False]
    assert shown[1:] == causal.tolist()[1:]


def test_text_prompt_is_unchanged():
    model = SimpleNamespace(config=SimpleNamespace(model_type="gemma3", text_config=None))
    features = SimpleNamespace(visual_pos_masks=None)
    assert patch.mark_images(features, model, mx.array([[1, 2]]), None, None) is features
    assert features.visual_pos_masks is None


@pytest.mark.parametrize("media", [(1, None), (None, 1), (1, 1)])
def test_chunks_keep_images_and_videos_whole(media):
    model = SimpleNamespace(config=SimpleNamespace(model_type="gemma3", text_config=None))
    assert patch.shows_images(model, *media)
    assert not patch.shows_images(model, None, None)
    assert not patch.shows_images(SimpleNamespace(), *media)


@pytest.mark.parametrize("vision", ["vision", "all", None])
def test_config_decides(vision):
    text = SimpleNamespace(use_bidirectional_attention=vision)
    config = SimpleNamespace(model_type="gemma4", text_config=text)
    assert patch.attends_both_ways(config) == (vision == "vision")
    config.model_type = "gemma4_unified"
    assert not patch.attends_both_ways(config)


@pytest.mark.parametrize(
    "run",
    [image_scenarios.features, image_scenarios.features_chunked, image_scenarios.features_solo],
)
@or_skip()
def test_batch_and_chunks_equal_solo(run, ungated):
    ungated("image-rows", "gemma-image-blocks", "offset-alias", "frozen-state")
    cell = run(tiny("mlx-vlm", "gemma3"))
    if cell.verdict == "n/a":  # the release batches no prompts with images
        pytest.skip(cell.detail)
    assert cell.verdict == "green", cell.detail
