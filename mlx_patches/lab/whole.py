"""A tiny whole model of mlx-vlm, with its vision tower, and images for it.

The release's classes are made small; ``whole.toml`` has what cannot be derived from them. The form
of a family's images, and how many prompt tokens each takes, is found by trying: an image fits if
other pixels change the embeddings of its tokens, and of no token before it.
"""

import copy
import dataclasses
import importlib
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from ..core.arrays import mx
from ..evidence.words import FLOAT32
from . import Family, LabModel, NotBuilt, build
from .generators import Request
from .shrink import VOCABULARY, config_class, instance, small_config

DATA: dict[str, Any] = tomllib.loads((Path(__file__).parent / "whole.toml").read_text())
# The special tokens' ids, inside the small vocabulary.
IMAGE, VIDEO, START, END = range(VOCABULARY - 6, VOCABULARY - 2)
# The largest token id of a text.
LAST = IMAGE - 1
# The longest image that is tried, in tokens.
LONGEST = 64

Inputs = dict[str, Any]
# Makes an image of random pixels from a seed: its inputs of the embedding step.
Draw = Callable[[int], Inputs]


@dataclasses.dataclass(frozen=True)
class Prompt(Request):
    """A request whose prompt may hold images."""

    shown: Inputs | None = None

    @property
    def inputs(self) -> Inputs:
        """What the release's processor would return for the prompt."""
        ids = mx.array([list(self.prompt)])
        return {"input_ids": ids, "attention_mask": mx.ones_like(ids), **(self.shown or {})}


@dataclasses.dataclass(frozen=True)
class Images:
    """How a family's prompts hold images.

    ``along``: the axis on which the pixels of images are joined. ``placed``: the names of inputs
    with the places of a prompt's images, from PLACES. ``listed``: inputs are lists with one entry
    per prompt. ``most``: how many images a prompt may have.
    """

    draw: Draw
    along: int = 0
    placed: tuple[str, ...] = ()
    listed: bool = False
    most: int = 2

    def inputs(self, tokens: Sequence[int], seeds: Sequence[int]) -> Inputs:
        """The embedding step's inputs for the images of a prompt with these tokens."""
        drawn = [self.draw(seed) for seed in seeds]
        places = {name: mx.array(PLACES[name](tokens)) for name in self.placed}
        joined = places | {
            name: mx.concatenate(
                [one[name] for one in drawn], axis=self.along if value.ndim > 2 else 0
            )
            for name, value in drawn[0].items()
        }
        return {name: list(value) if self.listed else value for name, value in joined.items()}


@dataclasses.dataclass(frozen=True)
class Whole:
    """A whole model, its language model in the lab's form, and its images.

    ``tokens``: an image's tokens in a prompt.
    """

    module: Any
    lab: LabModel
    tokens: tuple[int, ...]
    images: Images


def with_vision_tower(config: Mapping[str, Any]) -> Any:
    """A whole model of mlx-vlm of the family in ``config``; its weights are not initialized."""
    module = importlib.import_module(f"mlx_vlm.models.{config['model_type']}")
    whole = module.ModelConfig.from_dict(copy.deepcopy(config))
    whole.text_config = module.TextConfig.from_dict(config["text_config"])
    whole.vision_config = module.VisionConfig.from_dict(config["vision_config"])
    return module.Model(whole)


def build_whole(family: Family, seed: int = 0, dtype: str = FLOAT32) -> Whole:
    """A family's whole model, with weights of the dtype, drawn from the seed."""
    own = DATA["family"].get(family.name, {})
    overrides = build.overrides_of(family.distribution, family.name)
    if reason := own.get("not-built") or overrides.get("not-built"):
        raise NotBuilt(reason)
    module = family.module()
    try:
        text, small = build.text_config(module, None, overrides | own.get("text", {}))
        text = getattr(text, "text_config", None) or text
        vision = _vision(module, own.get("vision", {}))
        model = module.Model(_whole_config(module, overrides, own, family.name, text, vision))
        language = model.language_model
        build.refuse_giants(model)
    except NotBuilt:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:160]
        raise NotBuilt(f"{type(error).__name__}: {reason}") from error
    build.draw_weights(model, seed)
    build.cast_weights(model, dtype)
    lab = build.lab_model(family, language, small, build.tolerance_of(family, dtype), dtype)
    for counts, images in _images(vision, own):
        counts = [own["tokens"]] if "tokens" in own else counts
        found = fit(model, counts, images, own)
        if found:
            return Whole(model, lab, found, images)
    raise NotBuilt("no image that the lab knows fits its vision tower")


def _vision(module: ModuleType, own: Mapping[str, Any]) -> Any:
    kind = build.find(module, "VisionConfig")
    names = {field.name for field in dataclasses.fields(kind)}
    general = {name: value for name, value in DATA["vision"].items() if name in names}
    small = small_config(kind, {"model_type": _vision_type(module, kind)}) | general
    return instance(kind, {**small, **own})


def _vision_type(module: ModuleType, kind: type) -> str:
    """The first model type that the vision tower's source accepts."""
    file = Path(module.__path__[0]) / "vision.py"
    source = file.read_text() if file.exists() else ""
    named = re.search(r'model_type (?:not in \[|!= )\s*"([^"]+)"', source)
    default = next((f.default for f in dataclasses.fields(kind) if f.name == "model_type"), None)
    return named[1] if named else default if isinstance(default, str) else ""


def _whole_config(
    module: ModuleType,
    overrides: Mapping[str, Any],
    own: Mapping[str, Any],
    name: str,
    text: Any,
    vision: Any,
) -> Any:
    outer = build.find(module, "ModelConfig")
    kind = build.find(module, overrides.get("whole-class", "ModelConfig"))
    fields = {field.name for field in dataclasses.fields(kind)}
    given = overrides.get("whole", {}) | own.get("whole", {})
    settings = small_config(kind, given)
    settings |= {n: v for n, v in DATA["whole"].items() if n in fields and n not in given}
    settings |= {"model_type": name, "text_config": text, "vision_config": vision}
    for field, value in settings.items():
        inner = config_class(kind, field)
        if inner is not None and isinstance(value, dict):
            settings[field] = instance(inner, value)
    if "audio_config" in fields and not own.get("audio"):
        settings["audio_config"] = None
    made = kind(**{field: value for field, value in settings.items() if field in fields})
    made.text_config, made.vision_config = text, vision
    if kind is outer:
        return made
    # A model of several parts, for example for audio, images and speech; only vision matters here.
    others = instance(outer, small_config(outer, own.get("outer", {})))
    parts = [one.name for one in dataclasses.fields(outer) if config_class(outer, one.name) is kind]
    return dataclasses.replace(others, **dict.fromkeys(parts, made))


def _images(vision: Any, own: Mapping[str, Any]) -> Iterator[tuple[list[int], Images]]:
    """The images that a family may accept, each with token counts to try.

    ``own["image"]``: a form's name, or a form of only this family; if absent, all are tried.
    """
    only = own.get("image", "")
    named = {name: own[name] for name in ("most", "listed") if name in own}
    named["placed"] = tuple(own.get("placed", ()))
    if isinstance(only, Mapping):
        with_it = {name: mx.array(value) for name, value in only.get("more", {}).items()}
        draw = _draw(tuple(only["pixels"]), with_it)
        yield [*range(LONGEST, 0, -1)], Images(draw, only.get("along", 0), **named)
        return

    def setting(default: int, *names: str) -> int:
        found = (getattr(vision, name, None) for name in names)
        return next((one for one in found if isinstance(one, int) and one), default)

    side, channels = setting(14, "patch_size"), setting(3, "in_channels", "num_channels")
    frames, merged = (
        setting(1, "temporal_patch_size", "patch_temporal"),
        setting(2, "spatial_merge_size", "merge_size"),
    )
    high, wide, edge = 2 * merged, 3 * merged, 4 * side
    count = high * wide
    patches = (count, channels, side, side)
    flat = channels * side**2
    grid = {"image_grid_thw": mx.array([[1, high, wide]])}
    by_height = {"image_grid_hws": mx.array([[high, wide]])}
    shapes = {"spatial_shapes": mx.array([[high, wide]])}
    padded = shapes | {"pixel_attention_mask": mx.ones((1, count), mx.int32)}
    size = {"image_sizes": mx.array([[edge, edge]])}
    mask = {"pixel_attention_mask": mx.ones((1, 1, edge, edge), mx.bool_)}
    # A form's name, the shape of its pixels, its other inputs, and the axis of images.
    forms: list[tuple[str, tuple[int, ...], Inputs, int]] = [
        ("patches", (count, frames * flat), grid, 0),
        ("planes of patches", patches, grid, 0),
        ("row of patches", (1, *patches), grid, 1),
        ("patches by height", patches, by_height, 0),
        ("padded patches", (1, count, flat), padded, 0),
        ("plane", (1, channels, edge, edge), {}, 0),
        ("plane of a size", (1, channels, edge, edge), size, 0),
        ("crops", (1, 1, channels, edge, edge), {}, 1),
        ("crops of a size", (1, 1, channels, edge, edge), size, 1),
        ("masked crops", (1, 1, channels, edge, edge), mask, 1),
        ("channels last", (1, edge, edge, channels), {}, 0),
    ]
    counts = list(dict.fromkeys([count // merged**2, count, *range(1, LONGEST + 1)]))
    for name, shape, more, along in forms:
        if only in ("", name):
            yield counts, Images(_draw(shape, more), along, **named)


def _draw(shape: tuple[int, ...], more: Inputs) -> Draw:
    """Make a function that draws pixels of a shape; ``more`` is added to them."""

    def draw(seed: int) -> Inputs:
        return {"pixel_values": mx.random.normal(shape, key=mx.random.key(seed)), **more}

    return draw


def fit(model: Any, counts: list[int], images: Images, own: Mapping[str, Any]) -> tuple[int, ...]:
    """An image's tokens: those that its pixels change, and ``still`` others; or none."""
    best: list[int] = []
    still, ends = own.get("still", 0), own.get("ends", 1)
    for count in counts:
        tokens = [START, *[IMAGE] * count, *[END] * ends]
        try:
            moved, beside = _find_moved(model, [1, *tokens, 2], images)
        except Exception:  # wrong number of tokens, or wrong image
            continue
        fits = sum(moved[2 : 2 + count]) == count - still and not any(moved[:2])
        # Pixels that change no embedding must reach the language model another way.
        if fits and (count > still or beside) and len(tokens) > len(best):
            best = tokens
        if best and count == counts[0]:
            break
    return tuple(best)


def _find_moved(model: Any, tokens: list[int], images: Images) -> tuple[list[bool], bool]:
    """Which tokens' embeddings other pixels change, and whether they change other outputs."""
    from mlx.utils import tree_flatten

    one, other = (embed_prompt(model, tokens, images.inputs(tokens, [seed])) for seed in (1, 2))
    here, there = one.pop("inputs_embeds"), other.pop("inputs_embeds")
    if here.shape[1] != len(tokens):
        return [False] * len(tokens), False
    moved: list[bool] = (mx.abs(here - there).max(-1) > 0)[0].tolist()
    arrays = [
        {name: leaf for name, leaf in tree_flatten(made) if isinstance(leaf, mx.array)}
        for made in (one, other)
    ]
    beside = arrays[0].keys() & arrays[1].keys()
    return moved, not all(mx.array_equal(arrays[0][name], arrays[1][name]) for name in beside)


def embed_prompt(model: Any, tokens: Sequence[int], image: Inputs) -> dict[str, Any]:
    """The output of the whole model's embedding step for a prompt."""
    ids = mx.array([list(tokens)])
    inputs = {"pixel_values": None, "mask": mx.ones_like(ids), **image}
    made = model.get_input_embeddings(ids, inputs.pop("pixel_values"), **inputs)
    return {name: value for name, value in made.to_dict().items() if value is not None}


def _spans(tokens: Sequence[int]) -> list[list[int]]:
    """The index of each image's first token, and of the token after its last."""
    inside = [token == IMAGE for token in (END, *tokens, END)]
    edges = [at for at in range(len(tokens) + 1) if inside[at] != inside[at + 1]]
    return [edges[at : at + 2] for at in range(0, len(edges), 2)]


def _sight(tokens: Sequence[int]) -> list[list[list[list[int]]]]:
    """Which of four tiles of each image every token sees: those of the latest image so far."""
    starts = [start for start, _ in _spans(tokens)]
    ends = [*starts[1:], len(tokens)]
    return [
        [
            [[int(start <= at < end)] * 4 for start, end in zip(starts, ends, strict=True)]
            for at in range(len(tokens))
        ]
    ]


# Inputs with the places of a prompt's images.
PLACES: dict[str, Callable[[Sequence[int]], Any]] = {
    "image_bound": lambda tokens: [_spans(tokens)],
    "image_input_idx": lambda tokens: [[at for at, one in enumerate(tokens) if one == IMAGE]],
    "images_seq_mask": lambda tokens: [[token == IMAGE for token in tokens]],
    "cross_attention_mask": _sight,
}
