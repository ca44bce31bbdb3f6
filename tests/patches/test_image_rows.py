import mlx.core as mx
import pytest

from mlx_patches.patches.positions.image_rows.patch import MASK, READER, UNREAD, complete_rows

PIXELS, WHOLE, *_ = UNREAD


def test_text_row_gets_mask():
    image = {MASK: mx.array([[False, True]]), "more": 7}
    rows = complete_rows([None, image, {MASK: None}], [3, 2, 1])
    assert [row[MASK].tolist() for row in rows] == [[[False] * 3], [[False, True]], [[False]]]
    assert rows[1]["more"] == 7


@pytest.mark.parametrize("name", UNREAD)
def test_unjoinable_masks_are_skipped(name):
    rows = [{name: mx.ones((1, size, size)), "more": size} for size in (2, 3)]
    assert complete_rows([*rows, None], [3, 3, 3]) == [{"more": 2}, {"more": 3}, {}]


@pytest.mark.parametrize(
    "rows",
    [
        [None, {"more": 1}],
        [{MASK: None, PIXELS: None}, {MASK: None}],
        [{PIXELS: mx.ones((1, 1, 4, 4))}, {PIXELS: mx.ones((2, 1, 4, 4))}, None],
        [{WHOLE: mx.ones((1, 1, 2, 2)), READER: 1}, {WHOLE: mx.ones((1, 1, 3, 3)), READER: 1}],
    ],
    ids=["text", "empty arguments", "as many masks each", "a mask that is read"],
)
def test_joinable_rows_are_unchanged(rows):
    assert complete_rows(rows, [3] * len(rows)) is rows
