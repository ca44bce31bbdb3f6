"""Passes a video's frame rate from the processor to the positions of its prompt."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from ....probes.kit import (
    Result,
    Target,
    import_module,
    make_module,
    mx,
    require_module,
    require_own,
    require_parameter,
)

IMAGE, VIDEO, START, END = 90, 91, 92, 93
MERGED, PER_SECOND, OMNI_PER_SECOND, FRAMES = 2, 2, 13, 2
# The grids of patches of a video, and the frames per second from which it was sampled.
GRID, RATE = (3, 4, 6), 1.0


def make_prompt(*grids: Sequence[int], token: int = VIDEO) -> list[int]:
    """The tokens of a prompt with videos of these grids and text around them."""
    tokens = [5, 6]
    for grid in grids:
        tokens += [START, *[token] * (grid[0] * grid[1] * grid[2] // MERGED**2), END, 7]
    return tokens


def count_positions(
    tokens: Sequence[int], grids: Sequence[Sequence[int]], steps: Sequence[float]
) -> list[list[int]]:
    """The positions along each axis, with ``steps`` between the grids of each video."""
    found: list[tuple[int, ...]] = []
    left = list(zip(grids, steps, strict=True))
    while len(found) < len(tokens):
        begin = max(map(max, found), default=-1) + 1
        if tokens[len(found)] not in (IMAGE, VIDEO):
            found.append((begin,) * 3)
            continue
        (times, high, wide), step = left.pop(0)
        found += [
            (begin + int(time * step), begin + row, begin + column)
            for time in range(times)
            for row in range(high // MERGED)
            for column in range(wide // MERGED)
        ]
    return [list(axis) for axis in zip(*found, strict=True)]


class Qwen2_5_VLProcessor:
    """A processor that drops the frame rate, as the release's does."""

    video_processor = image_processor = SimpleNamespace(temporal_patch_size=FRAMES)

    def __call__(self, text: Any = None, images: Any = None, videos: Any = None, **_: Any) -> Any:
        return {} if videos is None else {"video_grid_thw": mx.array(videos)}


def make_model() -> Any:
    """A whole model of the release, without weights."""
    module = require_module("mlx_vlm.models.qwen2_5_vl")
    kind, whole = module.LanguageModel, module.Model
    require_parameter(whole.get_input_embeddings, "kwargs")  # up to 0.3.9 it takes no video
    vision = SimpleNamespace(spatial_merge_size=MERGED, tokens_per_second=PER_SECOND)
    config = make_config(vision_config=vision)
    embedder = SimpleNamespace(embed_tokens=lambda ids: mx.zeros((*ids.shape, 1)))
    language = make_module(kind, config=config, model=embedder)
    return make_module(whole, config=config, language_model=language, vision_tower=Tower())


def make_config(**more: Any) -> Any:
    """A config with the tokens of the prompts."""
    return SimpleNamespace(
        image_token_id=IMAGE, video_token_id=VIDEO, vision_start_token_id=START, **more
    )


class Tower:
    """A vision tower that returns blank features."""

    def __init__(self) -> None:
        self.patch_embed = SimpleNamespace(proj=SimpleNamespace(weight=mx.zeros(1)))

    def __call__(self, pixels: Any, grids: Any, **_: Any) -> Any:
        return mx.zeros((grids.prod(axis=-1).sum().item() // MERGED**2, 1))


def embed(model: Any, rows: Any, inputs: Any, mask: Any = None) -> tuple[Any, Any]:
    """The position ids and rope deltas that a release computes when it embeds prompts."""
    pixels = mx.zeros((1, 1))
    found = model.get_input_embeddings(rows, pixels, mask=mask, **inputs)
    positions = getattr(found, "position_ids", None)
    if positions is not None:
        return positions, found.rope_deltas
    return model.language_model._position_ids, model.language_model._rope_deltas


def process(grids: Any, rates: Sequence[float] | None) -> Any:
    """What a release's processor returns for videos."""
    process_inputs = import_module("mlx_vlm.utils").process_inputs
    return process_inputs(Qwen2_5_VLProcessor(), "a", videos=grids, fps=rates)


def make_omni() -> Any:
    """The language model of Qwen3-Omni, without weights."""
    kind = require_module("mlx_vlm.models.qwen3_omni_moe.language").LanguageModel
    vision = SimpleNamespace(spatial_merge_size=MERGED)
    config = make_config(vision_config=vision, position_id_per_seconds=OMNI_PER_SECOND)
    return make_module(kind, config=config)


def probe(target: Target) -> Result:
    """Red if the grids of a video have other positions than its frame rate gives."""
    require_own(target)
    tokens = make_prompt(GRID)
    if ".qwen3_omni_moe." in target.module:
        positions, _ = make_omni().get_rope_index(mx.array([tokens]), None, mx.array([GRID]))
        step = float(OMNI_PER_SECOND)
    else:
        positions, _ = embed(make_model(), mx.array([tokens]), process([GRID], [RATE]))
        step = PER_SECOND * FRAMES / RATE
    expected = mx.array(count_positions(tokens, [GRID], [step]))
    wrong = (positions[:, 0] != expected).any(axis=0).sum().item()
    return Result(wrong > 0, f"{wrong} of {len(tokens)} tokens have other positions")
