import importlib

import pytest

from mlx_patches.patches.positions.video_timestamps.patch import list_times
from mlx_patches.patches.positions.video_timestamps.probe import (
    GRID,
    PROCESSORS,
    TOKENS,
    make_processor,
    process,
)

from ..releases.models import or_skip

QWEN, MINIMAX = PROCESSORS
BLOCK = TOKENS[0] + TOKENS[1] * (GRID[1] * GRID[2] // 4) + TOKENS[2]
PROMPT = "".join(TOKENS)


@pytest.fixture
def qwen(ungated):
    with or_skip():
        made = make_processor(QWEN)
        importlib.import_module("mlx_vlm.utils")
    ungated("video-timestamps")
    return made


def write(*times):
    return "".join(f"<{time} seconds>{BLOCK}" for time in times)


def test_videos_have_own_times(qwen):
    processor, seen = qwen
    inputs = process(processor, f"a{PROMPT}b{PROMPT}c", [0.5, 4.0])
    assert seen == [f"a{write(1.0, 5.0)}b{write(0.1, 0.6)}c"]
    assert inputs["video_grid_thw"].tolist() == [list(GRID)] * 2
    assert inputs["pixel_values_videos"].shape[0] == 2 * GRID[0] * GRID[1] * GRID[2]


def test_times_are_those_of_the_source(qwen):
    processor, seen = qwen
    metadata = [{"fps": 30.0, "frames_indices": [0, 30, 60, 89]}]
    process(processor, PROMPT, [1.0], video_metadata=metadata)
    assert seen == [write(0.5, 2.5)]


def test_prompt_of_another_form_is_left_to_the_release(qwen):
    processor, seen = qwen
    process(processor, f"a{TOKENS[1]}b", [0.5])
    assert seen == [f"a{TOKENS[1] * (GRID[0] * GRID[1] * GRID[2] // 4)}b"]


def test_text_and_image_are_left_to_the_release(qwen):
    processor, seen = qwen
    run = importlib.import_module("mlx_vlm.utils").process_inputs
    run(processor, prompts=["a"])
    assert seen == ["a"]


def test_minimax_videos_have_own_times(ungated):
    with or_skip():
        processor, seen = make_processor(MINIMAX)
    ungated("video-timestamps")
    prompt = PROCESSORS[MINIMAX][0]
    process(processor, prompt * 2, [1.0, 0.1])
    for time in ("0.0", "2.0", "20.0"):
        assert f"]<]{time} seconds[>[" in seen[0]


def test_times_of_frames_without_metadata():
    assert list_times([None] * 3, 2.0, None) == [0.0, 0.5, 1.0]
    assert list_times([], 2.0, {"fps": 4.0, "frames_indices": [2, 4]}) == [0.5, 1.0]
