"""Embeds a prompt with an image and a video, with a vision tower that returns the pixels."""

from types import SimpleNamespace
from typing import Any

from ....probes.kit import (
    Result,
    Target,
    make_module,
    mx,
    require_module,
    require_own,
    require_parameter,
)
from .patch import IGNORES_VIDEOS, MODELS, PARTS

IMAGE, VIDEO, START, END, AUDIO = 90, 91, 92, 93, 94
MERGED = 2
# The pixels of the image and of both frames of the video, which the probe recognizes.
PIXELS, FRAMES = 3.0, (5.0, 7.0)
IMAGE_GRID, VIDEO_GRID = (1, 4, 6), (2, 4, 4)
WITH_DEEPSTACK = ("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_omni_moe")
CONFIG = SimpleNamespace(
    image_token_id=IMAGE,
    image_token_index=IMAGE,
    video_token_id=VIDEO,
    video_token_index=VIDEO,
    audio_token_id=AUDIO,
    vision_start_token_id=START,
    vision_config=SimpleNamespace(spatial_merge_size=MERGED, tokens_per_second=2),
)


def make_model(name: str) -> Any:
    """A whole model of the release, without weights."""
    part, _, found = PARTS.get(name, f"{name}:Model").partition(":")
    whole = getattr(require_module(f"mlx_vlm.models.{name}.{part}"), found)
    kind = require_module(f"mlx_vlm.models.{name}.language").LanguageModel
    require_parameter(whole.get_input_embeddings, "kwargs")  # up to 0.3.9 it takes no video
    embedder = SimpleNamespace(embed_tokens=lambda ids: mx.zeros((*ids.shape, 1)))
    language = make_module(kind, config=CONFIG, model=embedder)
    tower = Tower(name in WITH_DEEPSTACK)
    return make_module(whole, config=CONFIG, language_model=language, vision_tower=tower)


class Tower:
    """A vision tower whose features are the first of the pixels that it merges."""

    def __init__(self, has_deepstack: bool) -> None:
        self.patch_embed = SimpleNamespace(proj=SimpleNamespace(weight=mx.zeros(1)))
        self.has_deepstack = has_deepstack

    def __call__(self, pixels: Any, grids: Any, **_: Any) -> Any:
        features = pixels[:: MERGED**2]
        return (features, [features]) if self.has_deepstack else features


def count_features(grid: tuple[int, int, int]) -> int:
    return grid[0] * grid[1] * grid[2] // MERGED**2


def make_pixels(*frames: tuple[float, int]) -> Any:
    """Pixels of several frames, each of one value."""
    return mx.concatenate([mx.full((count, 1), value) for value, count in frames])


def make_inputs(*order: int) -> tuple[Any, dict[str, Any]]:
    """The tokens of a prompt with an image and a video in this order, and its other inputs."""
    tokens = [5]
    for token in order:
        count = count_features(IMAGE_GRID if token == IMAGE else VIDEO_GRID)
        tokens += [START, *[token] * count, END, 6]
    _, high, wide = VIDEO_GRID
    inputs = {
        "pixel_values": make_pixels((PIXELS, IMAGE_GRID[1] * IMAGE_GRID[2])),
        "pixel_values_videos": make_pixels(*((value, high * wide) for value in FRAMES)),
        "image_grid_thw": mx.array([IMAGE_GRID]),
        "video_grid_thw": mx.array([VIDEO_GRID]),
    }
    kinds = {
        IMAGE: ("pixel_values", "image_grid_thw"),
        VIDEO: ("pixel_values_videos", "video_grid_thw"),
    }
    return mx.array([tokens]), {name: inputs[name] for one in {*order} for name in kinds[one]}


def expect_embeddings(tokens: Any) -> list[float]:
    count = count_features((1, *VIDEO_GRID[1:]))
    videos = iter([value for value in FRAMES for _ in range(count)])
    return [
        PIXELS if token == IMAGE else next(videos) if token == VIDEO else 0.0
        for token in tokens[0].tolist()
    ]


def probe(target: Target) -> Result:
    """Red if an image or a frame is not embedded where its tokens are."""
    require_own(target)
    name = target.module.split(".")[2]
    # The positions of any model's prompt depend on the release's embeddings of all.
    names = MODELS.split() if target.name.endswith("get_rope_index") else [name]
    results = list(map(probe_model, names))
    return next((one for one in results if one.red), results[-1])


def probe_model(name: str) -> Result:
    found = probe_order(name, VIDEO, IMAGE)
    return found if found.red or name != IGNORES_VIDEOS else probe_order(name, VIDEO)


def probe_order(name: str, *order: int) -> Result:
    tokens, inputs = make_inputs(*order)
    model = make_model(name)
    try:
        found = model.get_input_embeddings(tokens, **inputs)
    except (TypeError, ValueError) as error:
        return Result(True, str(error).partition("\n")[0])
    values = found.inputs_embeds.reshape(-1).tolist()
    expected = expect_embeddings(tokens)
    wrong = sum(one != other for one, other in zip(values, expected, strict=True))
    return Result(wrong > 0, f"{wrong} of {len(values)} tokens have other embeddings")
