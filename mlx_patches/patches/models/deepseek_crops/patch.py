"""DeepSeek-VL2 now and then does not see an image.

Why
    The embedding step looks up the crops of as many images as the prompt has tiles of images, and
    takes sizes of 0 for the end. An image has two tiles or more, so it reads past the last image,
    and MLX does not check: what it finds there is any memory. Where that is a negative product, the
    tiles of the image are cut off the end, and the prompt is embedded as text.
How
    The step gets crops that have sizes of 0 past the last image.
Upstream
    Not mended in mlx-vlm 0.7.10.
Retire when
    The step counts images by the crops.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from ....core.patch import Patch, Target
from ..._shared.row_calls import bind_call

CROPS = "images_spatial_crop"


def with_end(crops: Any) -> Any:
    """The crops of prompts' images (prompts, images, 2), and sizes of 0 past the last image."""
    import mlx.core as mx

    return mx.pad(mx.array(crops), [(0, 0), (0, 1), (0, 0)])


def end_crops(embed: Callable[..., Any]) -> Callable[..., Any]:
    """The embedding step, with crops that have an end."""
    signature = inspect.signature(embed)

    @functools.wraps(embed)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        bound = bind_call(signature, args, kwargs)
        if bound is None or bound.arguments.get(CROPS) is None:
            return embed(*args, **kwargs)
        bound.arguments[CROPS] = with_end(bound.arguments[CROPS])
        return embed(*bound.args, **bound.kwargs)

    return replacement


PATCH = Patch(
    id="deepseek-crops",
    summary="DeepSeek-VL2 sometimes ignores an image",
    targets=(
        Target(
            "mlx-vlm",
            "mlx_vlm.models.deepseek_vl_v2.deepseek_vl_v2",
            "Model.get_input_embeddings",
            end_crops,
        ),
    ),
    wrong_alone="deepseek_vl_v2",
    changes_alone=True,
)
