"""Qwen-VL and GLM-V in mlx-vlm: wrong positions for the second image of a prompt.

Why: To count the images, the function that computes positions sums the indices of their start
    tokens, and reads the token after the sum. That is an image token only if there is one image: of
    two images only one gets rows and columns, of three often none; the others are positioned like
    text. Single requests are wrong too.
How: A row with several images is split before each start token but the first. The release's own
    function computes the positions of each part, which continue from the largest position before.
    Prompts with videos are unchanged.
Upstream: mlx-vlm 0.6.0 counts the start tokens.
Retire when: No supported release is older than mlx-vlm 0.6.0.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from ....core.verbs import Function, Patch, mx, vlm_family, wrap
from ..._shared.targets import MROPE

# Tokens, and the sizes of the images among them.
Part = tuple[list[int], Any]


def index_each_image(
    index: Function,
    model: Any,
    input_ids: Any,
    image_grid_thw: Any = None,
    video_grid_thw: Any = None,
    attention_mask: Any = None,
) -> Any:
    """Position ids (3, rows, tokens) and deltas (rows, 1) of prompts with several images."""
    given = (image_grid_thw, video_grid_thw, attention_mask)
    if image_grid_thw is None or video_grid_thw is not None or len(image_grid_thw) < 2:
        return index(model, input_ids, *given)
    kept = mx.ones_like(input_ids) if attention_mask is None else attention_mask == 1
    texts = mx.where(kept, input_ids, 0).tolist()
    rows = list(split_rows(texts, image_grid_thw, model.config.image_token_id))
    if all(len(parts) < 2 for parts in rows):
        return index(model, input_ids, *given)
    positions = mx.concatenate(
        [join_parts(index, model, parts, input_ids) for parts in rows], axis=1
    )
    deltas = positions.max(axis=(0, 2))[:, None] + 1 - input_ids.shape[1]
    return mx.where(kept, positions, 1), deltas


def split_rows(texts: Sequence[list[int]], grids: Any, image: int) -> Iterator[list[Part]]:
    """The parts of each row, with at most one image each; nothing if their number differs."""
    starts = [find_images(text, image) for text in texts]
    if sum(map(len, starts)) != len(grids):
        return
    used = 0
    for text, own in zip(texts, starts, strict=True):
        # An image's start token belongs to its part.
        edges = [0, *(start - 1 for start in own[1:]), len(text)]
        cut = [text[edge:end] for edge, end in itertools.pairwise(edges)]
        yield [
            (part, grids[used + at : used + at + 1] if own else None) for at, part in enumerate(cut)
        ]
        used += len(own)


def find_images(text: Sequence[int], image: int) -> list[int]:
    before = [None, *text[:-1]]
    pairs = enumerate(zip(before, text, strict=True))
    return [at for at, (last, token) in pairs if token == image and last != image]


def join_parts(index: Function, model: Any, parts: Sequence[Part], like: Any) -> Any:
    """Position ids (3, 1, tokens) of a row, continued from part to part."""
    found: list[Any] = []
    for tokens, grids in parts:
        own = index(model, mx.array([tokens], like.dtype), grids, None, None)[0]
        own = mx.broadcast_to(own, (3, 1, len(tokens)))
        found.append(own + found[-1].max() + 1 if found else own)
    return mx.concatenate(found, axis=-1)


PATCH = Patch(
    id="mrope-images",
    targets=wrap(vlm_family(MROPE, "LanguageModel.get_rope_index"), index_each_image),
    changes_solo=True,
)
