"""SmolVLM in mlx-vlm up to 0.6: wrong answers to images, whose tiles get no tokens.

Why: An image is cut into tiles, and a prompt has the tokens of each. The processor calls the
    image processor without the option that returns the numbers of rows and columns, and writes the
    tokens of a single tile.
How: The processor is called with this option.
Upstream: mlx-vlm 0.7.2 sets the option.
Retire when: No supported release is older than mlx-vlm 0.7.2.
"""

from typing import Any

from ....core.verbs import Function, Patch, wrap

OPTION = "return_row_col_info"


def count_tiles(call: Function, processor: Any, images: Any = None, *args: Any, **more: Any) -> Any:
    """The inputs of a prompt, with the tokens of each tile of its images."""
    if images is not None or more.get("videos") is not None:
        more.setdefault(OPTION, True)
    return call(processor, images, *args, **more)


PATCH = Patch(
    id="smolvlm-tiles",
    every_model=True,
    changes_solo=True,
    targets=wrap(
        "mlx_vlm.models.smolvlm.processing_smolvlm:SmolVLMProcessor.__call__", count_tiles
    ),
)
