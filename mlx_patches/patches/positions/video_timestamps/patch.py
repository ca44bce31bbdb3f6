"""Qwen3-VL, Qwen3.5 and MiniMax-M3 in mlx-vlm: a video has no timestamps, or those of 2 per second.

Why: The authors' processors write the time of each two frames before them, in a block of their own.
    Until mlx-vlm 0.7 Qwen3-VL's writes one block without times, and its positions take each video
    for one. Later processors read the times from an argument that they do not declare, and
    ``process_inputs`` drops it: all videos have 2 frames per second, those of MiniMax-M3 no times.
    Single requests are wrong too.
How: Qwen3-VL's prompt gets its times and blocks before the release processes it, and the video's
    patches after it. MiniMax-M3's processor gets the times where it reads them. The positions of a
    video with a block per grid are those of its grids.
Upstream: mlx-vlm 0.7.3 declares the argument in Qwen3-VL; MiniMax-M3 is not fixed in 0.7.10.
Retire when: Both processors declare ``video_metadata``.
"""

import inspect
import itertools
import re
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

from ....core.verbs import Function, Patch, argument, around, define, mx, support, vlm_family

MODELS = "qwen3_vl qwen3_vl_moe qwen3_5"
_MINIMAX = "mlx_vlm.models.minimax_m3_vl.processing_minimax_m3_vl:MiniMaxM3VLProcessor"
_metadata: ContextVar[Any] = ContextVar("mlx_patches_video_metadata", default=None)


def has_videos(processor: Any, *_: Any, **kwargs: Any) -> bool:
    """Whether a call has them; the first releases have no such arguments."""
    videos, fps = kwargs.get("videos"), kwargs.get("fps")
    return videos is not None and fps is not None and drops_times(type(processor))


def drops_times(kind: Any) -> bool:
    """Whether a class of processors does not declare the argument that has the times."""
    is_timed = kind.__name__ in ("Qwen3VLProcessor", "MiniMaxM3VLProcessor")
    return is_timed and "video_metadata" not in inspect.signature(kind.__call__).parameters


def process_timed(
    process: Function, processor: Any, prompts: Any, *args: Any, **kwargs: Any
) -> Any:
    """A processor's inputs of prompts with videos, and the times of their frames."""
    times = list(map(list_times, kwargs["videos"], kwargs["fps"], read_metadata(kwargs)))
    if type(processor).__name__ != "Qwen3VLProcessor":
        token = _metadata.set([{"fps": 1.0, "frames_indices": one} for one in times])
        try:
            return process(processor, prompts, *args, **kwargs)
        finally:
            _metadata.reset(token)
    tokens = (processor.vision_start_token, processor.video_token, processor.vision_end_token)
    texts = [prompts] if isinstance(prompts, str) else list(prompts)
    block = re.compile(re.escape("".join(tokens)))
    if sum(len(block.findall(text)) for text in texts) != len(times):
        return process(processor, prompts, *args, **kwargs)
    found = processor.video_processor(videos=kwargs.pop("videos"))
    merged = processor.video_processor.merge_size**2
    written = iter(
        write_blocks(tokens, times, grid, merged)
        for times, grid in zip(times, found["video_grid_thw"].tolist(), strict=True)
    )
    texts = [block.sub(lambda _: next(written), text) for text in texts]
    inputs = process(processor, texts, *args, **kwargs)
    inputs.update({name: mx.array(value) for name, value in found.items()})
    return inputs


def read_metadata(kwargs: Any) -> Sequence[Any]:
    return kwargs.get("video_metadata") or [None] * len(kwargs["videos"])


def list_times(video: Any, rate: float, metadata: Any) -> list[float]:
    """The seconds of each frame."""
    if metadata is None:
        return [frame / rate for frame in range(len(video))]
    given = metadata if isinstance(metadata, dict) else vars(metadata)
    return [frame / given["fps"] for frame in given["frames_indices"]]


def write_blocks(
    tokens: Sequence[str], times: Sequence[float], grid: Sequence[int], merged: int
) -> str:
    """The text of a video: for each grid the mean of its frames' times, and a block of tokens."""
    start, video, end = tokens
    frames = -(-len(times) // grid[0])
    groups = [times[first : first + frames] for first in range(0, len(times), frames)]
    block = start + video * (grid[1] * grid[2] // merged) + end
    return "".join(f"<{(one[0] + one[-1]) / 2:.1f} seconds>{block}" for one in groups)


def is_timed() -> bool:
    return _metadata.get() is not None


def add_metadata(video_inputs: Any) -> Any:
    """The inputs of videos from which MiniMax-M3's processor reads their times."""
    return {**video_inputs, "video_metadata": _metadata.get()}


def have_videos(video_grid_thw: Any) -> bool:
    return video_grid_thw is not None


def split_grids(model: Any, /, input_ids: Any, video_grid_thw: Any) -> Any:
    """The grids of videos, as many as their blocks in the prompts."""
    rows = (input_ids == model.config.video_token_id).tolist()
    blocks = sum(is_video for row in rows for is_video, _ in itertools.groupby(row))
    grids = [[1, *grid[1:]] for grid in video_grid_thw.tolist() for _ in range(grid[0])]
    return mx.array(grids) if len(grids) == blocks else video_grid_thw


PATCH = Patch(
    id="video-timestamps",
    every_model=True,
    targets=(
        *define("mlx_vlm.utils:process_inputs", around(process_timed), when=has_videos),
        *argument(
            vlm_family(MODELS, "LanguageModel.get_rope_index"),
            "video_grid_thw",
            split_grids,
            when=have_videos,
        ),
        *support(
            *argument(
                f"{_MINIMAX}.replace_video_token", "video_inputs", add_metadata, when=is_timed
            )
        ),
    ),
)
