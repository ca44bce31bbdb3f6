"""Qwen3-Omni gives the rows of a batch wrong positions if a prompt has images, or fails in pieces.

Why
    The language model computes the positions of a prompt with images when it is fed, from the
    token ids and the images' sizes of that call. In a batch these are of all rows, with their
    padding, and in a piece of a prompt an image may be longer than the piece: this raises, alone
    too.
How
    The positions are computed once, with the embeddings of the whole prompt, by the model's own
    function. The patch ``rope-deltas`` keeps them, and gives each row its own.
Upstream
    mlx-vlm 0.6.4 computes them with the embeddings.
Retire when
    No supported release is older than mlx-vlm 0.6.4.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....core.patch import Patch, Target, around

# The images' and the videos' sizes; with one of them the model computes positions.
GRIDS = ("image_grid_thw", "video_grid_thw")


def embed_with_positions(
    embed: Callable[..., Any], thinker: Any, input_ids: Any = None, *args: Any, **kwargs: Any
) -> Any:
    """Embed a prompt, and compute its positions if it has images or videos."""
    made = embed(thinker, input_ids, *args, **kwargs)
    grids = [kwargs.get(name) for name in GRIDS]
    if any(grid is not None for grid in grids):
        compute_positions(thinker.language_model, input_ids, grids)
    return made


def compute_positions(model: Any, input_ids: Any, grids: list[Any]) -> None:
    """Have the model compute a prompt's positions; ``rope-deltas`` follows the call."""
    model.get_rope_index(input_ids, *grids)


PATCH = Patch(
    id="omni-positions",
    summary="Qwen3-Omni with images: wrong positions in a batch, a crash in chunked prefill",
    targets=(
        Target(
            "mlx-vlm",
            "mlx_vlm.models.qwen3_omni_moe.thinker",
            "Thinker.get_input_embeddings",
            around(embed_with_positions),
        ),
    ),
)
