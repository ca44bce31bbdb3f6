"""Phi-4 with SigLIP 2 in mlx-vlm: every image is wrong.

Why: The tower attends to the padding that its processor appends to each image, and interpolates
    its positions bicubically. The authors mask the padding and interpolate bilinearly.
How: Each image runs through the tower without padding, with positions interpolated as in
    transformers.
Upstream: Not fixed in mlx-vlm 0.7.10.
Retire when: The tower masks padding and interpolates its positions bilinearly.
"""

from ....core.verbs import Patch, wrap
from ..._shared.siglip2 import encode_apart, interpolate

VISION = "mlx_vlm.models.phi4_siglip.vision"

PATCH = Patch(
    id="phi4-siglip-images",
    wrong_solo="phi4_siglip",
    targets=(
        *wrap(f"{VISION}:VisionEmbeddings.resize_positional_embeddings", interpolate),
        *wrap(f"{VISION}:VisionModel.__call__", encode_apart),
    ),
)
