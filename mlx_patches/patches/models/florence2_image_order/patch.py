"""Florence-2 in mlx-vlm reads images wrongly: their features are in another order.

Why: An image has 577 features: the mean of the others, and those of its places. Published configs
    put the mean first, with a field of ``vision_config``. mlx-vlm looks for it at the top of the
    config, and by default puts the mean last: each feature gets the position of its neighbour.
How: The field of ``vision_config`` is read.
Upstream: Not fixed in mlx-vlm 0.7.10.
Retire when: The release reads the field of ``vision_config``.
"""

from ....core.verbs import Patch
from ..._shared.configs import Params, config_target

ORDER = "image_feature_source"


def read_order(params: Params) -> Params:
    """The content of a Florence-2 config, with the order of image features at its top."""
    vision = params.get("vision_config")
    order = vision.get(ORDER) if isinstance(vision, dict) else None
    return {ORDER: order, **params} if order else params


PATCH = Patch(
    id="florence2-image-order",
    every_model=True,
    changes_solo=True,
    wrong_solo="florence2",
    targets=(config_target("mlx-vlm", "florence2", read_order),),
)
