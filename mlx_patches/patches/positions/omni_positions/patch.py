"""Qwen3-Omni with images: wrong positions in a batch, a crash in chunked prefill.

Why: The language model computes the positions of a prompt with images when the prompt is fed, from
    the token ids and image sizes of that call. In a batch these are of all rows, with padding. In
    chunked prefill an image may be longer than the chunk, which raises even for a single request.
How: The positions are computed once, when the whole prompt is embedded, by the model's own
    function. The patch ``rope-deltas`` keeps them, and passes each row its own.
Upstream: mlx-vlm 0.6.4 computes them when a prompt is embedded.
Retire when: No supported release is older than mlx-vlm 0.6.4.
"""

from typing import Any

from ....core.verbs import Patch, after


def compute_positions(
    thinker: Any, /, input_ids: Any, image_grid_thw: Any, video_grid_thw: Any
) -> None:
    """Compute a prompt's positions if it has images or videos; ``rope-deltas`` records the call."""
    if image_grid_thw is not None or video_grid_thw is not None:
        thinker.language_model.get_rope_index(input_ids, image_grid_thw, video_grid_thw)


PATCH = Patch(
    id="omni-positions",
    targets=after(
        "mlx_vlm.models.qwen3_omni_moe.thinker:Thinker.get_input_embeddings", compute_positions
    ),
)
