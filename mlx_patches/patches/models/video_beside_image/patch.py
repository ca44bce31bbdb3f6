"""Qwen-VL in mlx-vlm with an image and a video in one prompt: it ignores the video, or crashes.

Why: The model embeds ``pixel_values`` and ignores ``pixel_values_videos`` beside them. Qwen2-VL
    and Qwen2.5-VL answer without the video; Qwen3-VL-MoE, Qwen3.5 and, up to mlx-vlm 0.6,
    Qwen3-VL raise because their prompt has more media tokens than features. Qwen3-Omni embeds both,
    but raises when it joins their features for later layers. Up to 0.6 Qwen3-VL-MoE also ignores a
    video without an image.
How: The release embeds the images and the frames of the videos as images, in the order of the
    prompt: the vision tower computes each frame by itself. The positions are those of the prompt as
    it is, with its images and videos.
Upstream: mlx-vlm 0.7 embeds both in Qwen3-VL and Qwen3-Omni; the others are not fixed in 0.7.10.
Retire when: ``get_input_embeddings`` of each model reads both.
"""

from collections.abc import Iterator, Mapping
from threading import local
from typing import Any

from ....core.verbs import Function, Patch, mx, support, vlm_family, wrap

MODELS = "qwen2_vl qwen2_5_vl qwen3_vl qwen3_vl_moe qwen3_5 qwen3_omni_moe"
PARTS = {"qwen3_omni_moe": "thinker:Thinker"}
# The model that ignores even a video without an image.
IGNORES_VIDEOS = "qwen3_vl_moe"
# Pixels of a frame or an image, and its grid of patches: one, rows, columns.
Frame = tuple[Any, list[int]]


class Mixed(local):
    """The ids and grids of a thread's prompt while its frames are embedded as images."""

    prompt: Any = None


_mixed = Mixed()


def has_both(pixel_values: Any, pixel_values_videos: Any) -> bool:
    return pixel_values is not None and pixel_values_videos is not None


def has_videos(pixel_values_videos: Any) -> bool:
    return pixel_values_videos is not None


def embed_videos(
    embed: Function, model: Any, input_ids: Any, pixel_values: Any = None, **kwargs: Any
) -> Any:
    """The embeddings of a prompt with videos, which pass as images if there are none."""
    if pixel_values is None:
        return embed(model, input_ids, kwargs.pop("pixel_values_videos"), **kwargs)
    return embed_both(embed, model, input_ids, pixel_values, **kwargs)


def embed_both(
    embed: Function, model: Any, input_ids: Any, pixel_values: Any, **kwargs: Any
) -> Any:
    """The embeddings of a prompt with images and videos; its frames pass as images."""
    grids = [kwargs.pop("image_grid_thw"), kwargs.pop("video_grid_thw")]
    image, video = model.config.image_token_id, model.config.video_token_id
    pixels = [pixel_values, kwargs.pop("pixel_values_videos")]
    frames = dict(zip((image, video), map(split_frames, pixels, grids), strict=True))
    merged = model.config.vision_config.spatial_merge_size**2
    ordered = list(order_frames(input_ids.reshape(-1).tolist(), frames, merged))
    as_images = mx.where(input_ids == video, image, input_ids)
    joined = mx.concatenate([pixels for pixels, _ in ordered])
    kwargs["image_grid_thw"] = mx.array([grid for _, grid in ordered])
    # Features are cached by the media, not by their order in a prompt.
    kwargs.pop("vision_cache", None)
    _mixed.prompt = (input_ids, *grids)
    try:
        return embed(model, as_images, joined, **kwargs)
    finally:
        _mixed.prompt = None


def split_frames(pixels: Any, grids: Any) -> Iterator[Frame]:
    """The frames of videos, or images."""
    begin = 0
    for times, high, wide in grids.tolist():
        for _ in range(times):
            yield pixels[begin : begin + high * wide], [1, high, wide]
            begin += high * wide


def order_frames(
    tokens: list[int], frames: Mapping[int, Iterator[Frame]], merged: int
) -> Iterator[Frame]:
    """The frames of each kind of token, in the order of the tokens."""
    at = 0
    while at < len(tokens):
        if tokens[at] not in frames:
            at += 1
            continue
        pixels, grid = next(frames[tokens[at]])
        yield pixels, grid
        at += grid[1] * grid[2] // merged


def is_mixed() -> bool:
    return _mixed.prompt is not None


def index_prompt(
    index: Function,
    model: Any,
    input_ids: Any,
    image_grid_thw: Any = None,
    video_grid_thw: Any = None,
    attention_mask: Any = None,
) -> Any:
    """The positions of the prompt as it is, while its frames are embedded as images."""
    given = _mixed.prompt or (input_ids, image_grid_thw, video_grid_thw)
    return index(model, *given, attention_mask)


PATCH = Patch(
    id="video-beside-image",
    every_model=True,
    changes_solo=True,
    targets=(
        *(
            target
            for name in MODELS.split()
            for target in wrap(
                f"mlx_vlm.models.{name}.{PARTS.get(name, f'{name}:Model')}.get_input_embeddings",
                *((embed_videos, has_videos) if name == IGNORES_VIDEOS else (embed_both, has_both)),
            )
        ),
        *support(
            *wrap(vlm_family(MODELS, "LanguageModel.get_rope_index"), index_prompt, when=is_mixed)
        ),
    ),
)
