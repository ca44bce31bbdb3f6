"""Feeds a prompt with an image to a tiny language model, and records each layer's mask."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

from ....probes.kit import NotApplicable, Result, Target, import_module, mx, require_own, tiny

IMAGE = 60
# Two images between texts.
PROMPT = (1, 2, IMAGE, IMAGE, IMAGE, 3, IMAGE, IMAGE, 4)
FULL, SLIDING = "full_attention", "sliding_attention"


def probe(target: Target) -> Result:
    """Red if a mask differs from what the authors' rule gives, with an empty or a filled cache."""
    require_own(target)
    # Other targets only carry what a language model reads.
    families = (one for one in ("gemma4", "molmo2") if f".{one}" in target.module)
    family = next(families, "gemma3")
    whole = import_module(f"mlx_vlm.models.{family}.{family}").Model
    accepted = inspect.signature(inspect.unwrap(whole.get_input_embeddings)).parameters
    if not {"pixel_values_videos", "kwargs"} & set(accepted):
        raise NotApplicable("this release's models accept no videos")
    language = tiny("mlx-vlm", family).module
    if family == "molmo2":  # its images are in every layer, which are all alike
        return compare_molmo(language)
    shown = [SLIDING, FULL]
    if family == "gemma4":
        language.config.use_bidirectional_attention = "vision"
        shown.remove(FULL)
    differing: dict[str, None] = {}
    for held in (0, 3):
        for kind, mask in record_masks(language, family, held):
            window = language.config.sliding_window if kind == SLIDING else held + len(PROMPT)
            if mask != draw_mask(kind in shown, held, window):
                differing[f"{kind} after {held} tokens"] = None
    layers = ", ".join(differing) or "no layer"
    return Result(bool(differing), f"masks that differ from the authors': {layers}")


def compare_molmo(language: Any) -> Result:
    """Red if tokens of Molmo 2's images do not see all images, with an empty or a filled cache."""
    language.config = SimpleNamespace(model_type="molmo2")
    cache: Any = import_module("mlx_vlm.models.cache")
    ids, off = mx.array([PROMPT]), []
    for held in (0, 3):
        layers = [cache.KVCache() for _ in language.layers]
        if held:
            language(mx.array([list(range(1, held + 1))]), cache=layers)
        with record_attention("molmo2") as seen:
            embeds = language.model.wte(ids)
            language(ids, inputs_embeds=embeds, cache=layers, visual_pos_masks=ids == IMAGE)
        want = draw_mask(True, held, held + len(PROMPT), second=1)
        if any(read_mask(mask, held) != want for mask in seen):
            off.append(f"after {held} tokens")
    return Result(bool(off), f"masks that differ from the authors': {', '.join(off) or 'none'}")


def record_masks(language: Any, family: str, held: int) -> Iterator[tuple[str, Any]]:
    """Each layer's kind, and its mask of the prompt after ``held`` tokens of text."""
    cache = language.make_cache()
    if held:
        language(mx.array([list(range(1, held + 1))]), cache=cache)
    ids = mx.array([PROMPT])
    visual = ids == IMAGE
    given = {"visual_pos_masks": visual, "mm_token_type_ids": visual.astype(mx.int32)}
    embeds = language.model.embed_tokens(ids)
    with record_attention(family) as seen:
        language(ids, inputs_embeds=embeds, cache=cache, **given)
    for layer, mask in zip(language.model.layers, seen, strict=True):
        kind = SLIDING if layer.self_attn.is_sliding else FULL
        yield kind, read_mask(mask, held)


@contextmanager
def record_attention(family: str) -> Iterator[list[Any]]:
    """The masks with which layers attend inside the block."""
    module: Any = import_module(f"mlx_vlm.models.{family}.language")
    attend, seen = module.scaled_dot_product_attention, list[Any]()

    def record(*args: Any, mask: Any = None, **kwargs: Any) -> Any:
        seen.append(mask)
        return attend(*args, mask=mask, **kwargs)

    with mock.patch.object(module, "scaled_dot_product_attention", record):
        yield seen


def read_mask(mask: Any, held: int) -> Any:
    """A layer's mask as rows of booleans."""
    if mask is None or isinstance(mask, str):
        return draw_mask(False, held, held + len(PROMPT))
    return mask.reshape(mask.shape[-2:]).tolist()


def draw_mask(shows_images: bool, held: int, window: int, second: int = 2) -> list[list[bool]]:
    """The authors' mask: in the window, and causal or between tokens of an image."""
    image = [0] * held + [
        1 if token == IMAGE and at < 5 else second if token == IMAGE else 0
        for at, token in enumerate(PROMPT)
    ]
    columns = range(len(image))

    def sees(query: int, key: int) -> bool:
        beside = shows_images and image[query] == image[key] != 0
        return key > query - window and (key <= query or beside)

    return [[sees(query, key) for key in columns] for query in columns[held:]]
