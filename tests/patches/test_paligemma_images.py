from types import SimpleNamespace

import pytest

from ..releases.conftest import is_installed

pytestmark = pytest.mark.skipif(not is_installed("mlx-vlm"), reason="tests of mlx-vlm")


def test_features_follow_their_tokens():
    import mlx.core as mx

    from mlx_patches.patches.models.paligemma_images.patch import move_features

    model = SimpleNamespace(config=SimpleNamespace(image_token_index=9))
    ids = mx.array([[0, 0, 9, 9, 1], [9, 9, 1, 9, 9]])
    features = mx.arange(6.0).reshape(1, 6, 1)
    moved = move_features(model, features, ids)[..., 0]
    found = [
        [value for value, token in zip(row, one, strict=True) if token == 9]
        for row, one in zip(moved.tolist(), ids.tolist(), strict=True)
    ]
    assert found == [[0, 1], [2, 3, 4, 5]]
