"""Reads the times that processors write into prompts, and the positions of a video's blocks."""

from types import SimpleNamespace
from typing import Any

from ....probes.kit import (
    NotApplicable,
    Result,
    Target,
    class_of,
    make_module,
    mx,
    require_module,
    require_own,
)

VIDEO, START, END = 91, 92, 93
MERGED, FRAMES = 2, 2
CONFIG = SimpleNamespace(
    image_token_id=90,
    video_token_id=VIDEO,
    vision_start_token_id=START,
    vision_config=SimpleNamespace(spatial_merge_size=MERGED),
)
GRID = (2, 4, 6)
# Frames per second, and what a processor writes before the frames of a video of this rate.
RATE = 0.5
TOKENS = ("<|vision_start|>", "<|video_pad|>", "<|vision_end|>")
PROCESSORS = {
    "qwen3_vl:Qwen3VLProcessor": ("".join(TOKENS), ("<1.0 seconds>", "<5.0 seconds>")),
    "minimax_m3_vl:MiniMaxM3VLProcessor": (
        "]<]video[>[",
        ("]<]0.0 seconds[>[", "]<]4.0 seconds[>["),
    ),
}


class VideoProcessor:
    """Returns blank patches of videos, whatever their frames are."""

    merge_size, temporal_patch_size, fps = MERGED, FRAMES, 2.0

    def __call__(self, videos: Any, **_: Any) -> Any:
        import numpy as np

        patches = np.zeros((len(videos) * GRID[0] * GRID[1] * GRID[2], 1), np.float32)
        return {"pixel_values_videos": patches, "video_grid_thw": np.array([GRID] * len(videos))}


def make_processor(place: str) -> tuple[Any, list[str]]:
    """A release's processor without its tokenizer, and the texts that this one gets."""
    family, _, name = place.partition(":")
    kind = getattr(require_module(f"mlx_vlm.models.{family}.processing_{family}"), name)
    seen: list[str] = []

    def tokenize(text: Any, **_: Any) -> Any:
        seen.extend(text)
        return {"input_ids": [[1]] * len(text)}

    processor = kind.__new__(kind)
    start, video, end = TOKENS
    processor.vision_start_token, processor.vision_end_token = start, end
    if "Qwen" in name:
        processor.video_token, processor.image_token = video, "<|image_pad|>"
    processor.tokenizer, processor.video_processor = tokenize, VideoProcessor()
    processor.image_processor = VideoProcessor()
    return processor, seen


def process(processor: Any, prompt: str, rates: list[float], **more: Any) -> Any:
    """What a release's function returns for videos of 2 grids."""
    videos = [[None] * (GRID[0] * FRAMES)] * len(rates)
    run = require_module("mlx_vlm.utils").process_inputs
    return run(processor, prompts=[prompt], videos=videos, fps=rates, **more)


def probe(target: Target) -> Result:
    """Red if a processor writes wrong times or none, or the grids of a video share a block."""
    require_own(target)
    if target.name.endswith("get_rope_index"):
        return probe_positions(target)
    found = 0
    for place, (prompt, times) in PROCESSORS.items():
        try:
            processor, seen = make_processor(place)
        except NotApplicable:
            continue
        found += 1
        process(processor, prompt, [RATE])
        missing = [time for time in times if time not in seen[0]]
        if missing:
            return Result(True, f"{place}: no {', '.join(missing)}")
    if not found:
        raise NotApplicable("the processors are those of transformers")
    return Result(False, "the times are written")


def make_blocks() -> Any:
    """The tokens of a video with a block per grid. Old releases find only a first start token."""
    block = [START, *[VIDEO] * (GRID[1] * GRID[2] // MERGED**2), END, 7]
    return mx.array([block * GRID[0]])


def probe_positions(target: Target) -> Result:
    """Red if a video of 2 grids has other positions than 2 videos of one grid."""
    model, tokens = make_module(class_of(target), config=CONFIG), make_blocks()
    index = model.get_rope_index
    own, _ = index(tokens, None, mx.array([GRID]))
    expected, _ = index(tokens, None, mx.array([[1, *GRID[1:]]] * GRID[0]))
    wrong = (own != expected).any(axis=(0, 1)).sum().item()
    return Result(wrong > 0, f"{wrong} of {tokens.size} tokens have other positions")
