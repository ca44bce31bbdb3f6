"""MiniCPM-V 4.6 in mlx-vlm: images are put in parentheses, and get wrong positions.

Why: The chat format writes ``(<image>./</image>)`` and a line break for an image. The processor
    replaces only the part within the parentheses. In the vision tower, the boundaries between
    positions are sums of rounded steps, so a patch on a boundary may fall on its other side.
How: The folder's chat template places images, as for MiniCPM-V 4.7. Positions are computed in
    integers.
Upstream: Not fixed in mlx-vlm 0.7.10.
Retire when: A conversation and its positions equal those of transformers.
"""

import sys
from typing import Any

from ....core.verbs import Function, Patch, after, mx, wrap

FAMILY = "minicpmv4_6"


def place_images(formatter: Any, /) -> None:
    """Let the chat template of a MiniCPM-V 4.6 place images."""
    if formatter.model_name == FAMILY:
        formats = sys.modules[type(formatter).__module__].MessageFormat
        formatter.format_type = formats.LIST_WITH_IMAGE_FIRST


def find_positions(call: Function, embeddings: Any, n_patches: int, boundaries: Any) -> Any:
    """The position of each patch along an axis: how many boundaries it reaches."""
    count = max(int(n_patches), 1)
    return spread(mx.arange(count), count, embeddings._position_grid_size())


def spread(patches: Any, count: int, size: int) -> Any:
    return patches * size // count


PATCH = Patch(
    id="minicpm-images",
    every_model=True,
    wrong_solo=FAMILY,
    targets=(
        *after("mlx_vlm.prompt_utils:MessageFormatter.__init__", place_images, supports=True),
        *wrap(
            f"mlx_vlm.models.{FAMILY}.vision:SiglipVisionEmbeddings._build_position_buckets",
            find_positions,
        ),
    ),
)
