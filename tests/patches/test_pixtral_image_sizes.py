"""``pixtral-image-sizes``: sizes are listed by prompt, however transformers lists them."""

import pytest

from mlx_patches.patches.models.pixtral_image_sizes.patch import Made

np = pytest.importorskip("numpy")

IMAGES = [["one", "two"], ["three"]]
BY_PROMPT = [[(28, 56), (56, 28)], [(84, 84)]]
FLAT = [(28, 56), (56, 28), (84, 84)]


@pytest.mark.parametrize("sizes", [FLAT, np.array(FLAT), BY_PROMPT])
def test_sizes_are_listed_by_prompt(sizes):
    assert Made({"image_sizes": sizes}, IMAGES).get("image_sizes") == BY_PROMPT
