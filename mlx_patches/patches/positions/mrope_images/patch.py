"""Qwen-VL and GLM-V in mlx-vlm: wrong positions for the second image or video of a prompt.

Why: To count the images, the function that computes positions sums the indices of their start
    tokens, and reads the token after the sum. That is an image token only if there is one image: of
    two images only one gets rows and columns, of three often none; the others are positioned like
    text. The same holds for videos. Single requests are wrong too.
How: A row with several images or videos is split before each start token but the first. The
    release's own function computes the positions of each part, which continue from the largest
    position before.
Upstream: mlx-vlm 0.6.0 counts the start tokens.
Retire when: No supported release is older than mlx-vlm 0.6.0.
"""

import itertools
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

from ....core.verbs import Function, Patch, mx, vlm_family, wrap
from ..._shared.targets import MROPE

# Tokens, and the size of the image or video among them, by its token.
Part = tuple[list[int], dict[int, Any]]


def index_each_image(
    index: Function,
    model: Any,
    input_ids: Any,
    image_grid_thw: Any = None,
    video_grid_thw: Any = None,
    attention_mask: Any = None,
) -> Any:
    """Position ids (3, rows, tokens) and deltas (rows, 1) of prompts with several images."""
    given = (image_grid_thw, video_grid_thw)
    if sum(len(grids) for grids in given if grids is not None) < 2:
        return index(model, input_ids, *given, attention_mask)
    tokens = (model.config.image_token_id, model.config.video_token_id)
    media = {
        token: list(grids[:, None])
        for token, grids in zip(tokens, given, strict=True)
        if grids is not None
    }
    kept = mx.ones_like(input_ids) if attention_mask is None else attention_mask == 1
    texts = mx.where(kept, input_ids, 0).tolist()
    rows = list(split_rows(texts, media))
    if all(len(parts) < 2 for parts in rows):
        return index(model, input_ids, *given, attention_mask)
    joined = [join_parts(index, model, parts, tokens, input_ids.dtype) for parts in rows]
    positions = mx.concatenate(joined, axis=1)
    deltas = positions.max(axis=(0, 2))[:, None] + 1 - input_ids.shape[1]
    return mx.where(kept, positions, 1), deltas


def split_rows(texts: Sequence[list[int]], media: Mapping[int, Any]) -> Iterator[list[Part]]:
    """The parts of each row, with at most one image each; nothing if their number differs."""
    starts = [find_images(text, media) for text in texts]
    found = [text[at] for text, own in zip(texts, starts, strict=True) for at in own]
    if any(found.count(token) != len(grids) for token, grids in media.items()):
        return
    left = {token: iter(grids) for token, grids in media.items()}
    for text, own in zip(texts, starts, strict=True):
        # An image's start token belongs to its part.
        edges = [0, *(start - 1 for start in own[1:]), len(text)]
        cut = [text[edge:end] for edge, end in itertools.pairwise(edges)]
        grids = [{text[at]: next(left[text[at]])} for at in own]
        yield list(zip(cut, grids or [{}], strict=True))


def find_images(text: Sequence[int], media: Container[int]) -> list[int]:
    before = [None, *text[:-1]]
    pairs = enumerate(zip(before, text, strict=True))
    return [at for at, (last, token) in pairs if token in media and last != token]


def join_parts(
    index: Function, model: Any, parts: Sequence[Part], tokens: Sequence[int], dtype: Any
) -> Any:
    """Position ids (3, 1, tokens) of a row, continued from part to part."""
    found: list[Any] = []
    for part, grids in parts:
        own = index(model, mx.array([part], dtype), *map(grids.get, tokens), None)[0]
        own = mx.broadcast_to(own, (3, 1, len(part)))
        found.append(own + found[-1].max() + 1 if found else own)
    return mx.concatenate(found, axis=-1)


PATCH = Patch(
    id="mrope-images",
    targets=wrap(vlm_family(MROPE, "LanguageModel.get_rope_index"), index_each_image),
    changes_solo=True,
)
