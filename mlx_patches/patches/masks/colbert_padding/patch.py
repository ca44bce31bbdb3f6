"""LFM2-ColBERT embeddings of mlx-vlm: wrong for a short text batched with a long one.

Why: The convolutions read one token to the right. They are not masked, so the last tokens of a
    short text read its pad tokens.
How: The convolutions are masked, as in mlx-vlm's other LFM2 embeddings. Texts without padding are
    embedded as before.
Upstream: Not fixed in mlx-vlm 0.7.10.
Retire when: The model masks its convolutions.
"""

from ....core.verbs import Patch, argument


def mask_all(mask_convolutions: bool) -> bool:
    """Whether convolutions are masked: always."""
    return True


PATCH = Patch(
    id="colbert-padding",
    every_model=True,
    targets=argument(
        "mlx_vlm.models.lfm2_embedding.lfm2_embedding:Model._encode", "mask_convolutions", mask_all
    ),
)
