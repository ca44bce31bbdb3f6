from types import SimpleNamespace

import pytest

from ..releases.conftest import is_installed

pytestmark = pytest.mark.skipif(not is_installed("mlx-vlm"), reason="tests of mlx-vlm")

IMAGE = 9
MODEL = SimpleNamespace(config=SimpleNamespace(image_token_index=IMAGE))


def test_only_unexpanded_placeholders_are_expanded():
    import numpy as np

    from mlx_patches.patches.models.several_images.patch import find_placeholders

    bare = np.array([[1, IMAGE, 2, IMAGE]])
    assert [list(one) for one in find_placeholders(bare, IMAGE, 3)] == [[1], [3]]
    expanded = np.array([[1, *[IMAGE] * 3, 2, *[IMAGE] * 3]])
    assert len(find_placeholders(expanded, IMAGE, 3)) == 0


def test_features_that_do_not_fit_their_tokens_are_left_to_the_release():
    import mlx.core as mx

    from mlx_patches.patches.models.several_images.patch import place_features

    features, ids, merged = mx.ones((2, 3, 1)), mx.array([[IMAGE] * 5]), object()
    assert place_features(merged, MODEL, features, mx.zeros((1, 5, 1)), ids) is merged
    one, ids = features[:1], mx.array([[IMAGE] * 3])
    assert place_features(merged, MODEL, one, mx.zeros((1, 3, 1)), ids) is merged


def test_rows_with_one_image_each_are_merged_in_one_call():
    import mlx.core as mx

    from mlx_patches.patches.models.several_images.patch import merge_by_row

    features, ids = mx.ones((2, 2, 1)), mx.array([[IMAGE, IMAGE, 1], [1, IMAGE, IMAGE]])
    rows = []
    merge_by_row(lambda *args: rows.append(len(args[3])), IMAGE, features, ids, ids)
    assert rows == [2]


def test_a_row_without_an_image_takes_no_features():
    import mlx.core as mx

    from mlx_patches.patches.models.several_images.patch import merge_by_row

    features, ids = mx.arange(4.0).reshape(2, 2, 1), mx.array([[1, 1, 1, 1], [IMAGE] * 4])
    given = []
    merge_by_row(lambda *args: given.append(args[1]) or args[2], IMAGE, features, ids, ids)
    assert [one.tolist() for one in given] == [[[]], [[[0], [1], [2], [3]]]]
