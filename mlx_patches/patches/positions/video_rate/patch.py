"""Qwen2.5-VL, Qwen3-Omni in mlx-vlm: wrong positions in and after a video.

Why: A video's positions count its time. Two frames share a grid, which lasts one second at 2 frames
    per second, and a second is ``tokens_per_second`` positions, published as 2, or 13 in
    Qwen3-Omni. The release counts each grid as one position, which is right only at 4 frames per
    second, or 26. Its processor drops the rate, and no function has a parameter for it. Single
    requests are wrong too.
How: The processor's result gets the seconds between two grids of each video, under transformers'
    name. They are kept while the prompt is embedded; the release's positions of each video are
    scaled by them, and those after it follow its largest. Without them a grid is one second, as in
    transformers. Text and images are unchanged.
Upstream: Not reported; present in mlx-vlm 0.7.10.
Retire when: ``get_rope_index`` reads ``tokens_per_second``.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from ....core.verbs import Function, Patch, mx, result, support, wrap

NAME, OMNI = NAMES = ("second_per_grid_ts", "video_second_per_grid")
# What transformers calls the seconds between two grids, by the release's processor.
SECONDS = {"Qwen2_5_VLProcessor": NAME, "Qwen3OmniMoeProcessor": OMNI}
_MODEL = "mlx_vlm.models.qwen2_5_vl"
_OMNI = "mlx_vlm.models.qwen3_omni_moe"
_GENERATORS = ("mlx_vlm.generate", "mlx_vlm.generate.dispatch")
_seconds: ContextVar[Any] = ContextVar("mlx_patches_seconds_per_grid", default=None)


def has_rates(processor: Any, videos: Any, fps: Any) -> bool:
    return videos is not None and fps is not None and type(processor).__name__ in SECONDS


def add_seconds(inputs: Any, processor: Any, /, fps: Any) -> Any:
    """The processor's result, with the seconds between two grids of each video."""
    frames = (processor.video_processor or processor.image_processor).temporal_patch_size
    inputs[SECONDS[type(processor).__name__]] = mx.array([frames / rate for rate in fps])
    return inputs


def has_seconds(second_per_grid_ts: Any) -> bool:
    return second_per_grid_ts is not None


def has_omni_seconds(video_second_per_grid: Any) -> bool:
    return video_second_per_grid is not None


def have_seconds(kwargs: Any) -> bool:
    return any(kwargs.get(name) is not None for name in NAMES)


def keep_seconds(call: Function, *args: Any, **kwargs: Any) -> Any:
    """Call a function that computes a model's positions, with the seconds known to the last."""
    given: Mapping[str, Any] = kwargs or args[-1]
    token = _seconds.set(given.get(NAME, given.get(OMNI)))
    try:
        return call(*args, **kwargs)
    finally:
        _seconds.reset(token)


def has_videos(video_grid_thw: Any) -> bool:
    return video_grid_thw is not None


def scale_videos(
    out: Any, model: Any, /, input_ids: Any, video_grid_thw: Any, attention_mask: Any
) -> Any:
    """Position ids (3, rows, tokens) and deltas, with each video's time in seconds."""
    positions, deltas = out
    config, number = model.config, len(video_grid_thw)
    kept = mx.ones_like(input_ids) if attention_mask is None else attention_mask == 1
    texts = (mx.where(kept, input_ids, -1) == config.video_token_id).tolist()
    if sum(is_video for text in texts for is_video, _ in itertools.groupby(text)) != number:
        return out
    seconds = mx.array(1.0 if _seconds.get() is None else _seconds.get()).reshape(-1).tolist()
    if len(seconds) != number:
        seconds = [1.0] * number
    per_second = getattr(config, "position_id_per_seconds", None)
    dtype = mx.float32 if per_second else positions.dtype  # Qwen3-Omni has fractions
    per_second = per_second or config.vision_config.tokens_per_second
    steps = iter([per_second * second for second in seconds])
    rows = [scale_row(positions[:, row], text, steps, dtype) for row, text in enumerate(texts)]
    scaled = mx.stack([row for row, _ in rows], axis=1)
    later = mx.stack([more for _, more in rows])[: deltas.size].reshape(deltas.shape)
    return mx.where(kept, scaled, positions), deltas + later


def scale_row(
    row: Any, is_video: Sequence[bool], steps: Iterator[float], dtype: Any
) -> tuple[Any, Any]:
    """Position ids (3, tokens) of a row, and by how much its last ones grew."""
    parts, more, begin = [], mx.array(0, dtype), 0
    for in_video, tokens in itertools.groupby(is_video):
        end = begin + len(list(tokens))
        part = row[:, begin:end]
        parts.append(part + more)
        if in_video:
            time = scale_time(part[0] - part[0, 0], next(steps), dtype)
            longer = mx.stack([time + part[0, 0], part[1], part[2]])
            parts[-1] = longer + more
            more = more + longer.max() - part.max()
        begin = end
    return mx.concatenate(parts, axis=1), more


def scale_time(grids: Any, step: float, dtype: Any) -> Any:
    """The positions of a video's grids along its time, whole if they are integers."""
    return (grids * step).astype(dtype)


PATCH = Patch(
    id="video-rate",
    every_model=True,
    changes_solo=True,
    targets=(
        *result(
            [f"{model}.language:LanguageModel.get_rope_index" for model in (_MODEL, _OMNI)],
            scale_videos,
            when=has_videos,
        ),
        *support(
            *result("mlx_vlm.utils:process_inputs", add_seconds, when=has_rates),
            *wrap(
                [
                    f"{_MODEL}.qwen2_5_vl:Model.{name}"
                    for name in ("get_input_embeddings", "__call__")
                ],
                keep_seconds,
                when=has_seconds,
            ),
            *wrap(
                f"{_OMNI}.qwen3_omni_moe:Model.get_input_embeddings",
                keep_seconds,
                when=has_omni_seconds,
            ),
            *wrap(
                [f"{module}:_prime_cached_prefix_rope_state" for module in _GENERATORS],
                keep_seconds,
                when=have_seconds,
            ),
        ),
    ),
)
