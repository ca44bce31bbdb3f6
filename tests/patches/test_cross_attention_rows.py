import mlx.core as mx

from mlx_patches.patches._shared.image_states import ImageStates, join_states
from mlx_patches.patches.models.cross_attention_rows import patch as cross_attention_rows
from mlx_patches.patches.models.cross_attention_rows.patch import MASK, SHOWN, STATES


def images(*counts):
    """Row states whose values are the row's number, from 1 on."""
    longest = max(counts)
    rows = [
        [[float(row)] if at < count else [0.0] for at in range(longest)]
        for row, count in enumerate(counts, 1)
    ]
    return ImageStates(mx.array(rows), counts)


def values(held):
    return held.states[..., 0].tolist()


def test_states_follow_rows():
    held = images(1, 3, 0)
    assert values(held.take_rows([0])) == [[1]]
    assert values(held.take_rows([1, 0])) == [[2, 2, 2], [1, 0, 0]]
    assert held.take_rows([2]) is None and held.take_rows([]) is None
    joined = join_states([images(1), None, images(2, 0)], [1, 1, 2])
    assert joined.counts == (1, 0, 2, 0)
    assert values(joined) == [[1, 0], [0, 0], [1, 1], [0, 0]]
    assert join_states([None, None], [1, 2]) is None


def test_only_padding_is_masked():
    assert set(cross_attention_rows.build_arguments(images(2, 2))) == {STATES}
    given = cross_attention_rows.build_arguments(images(1, 2))
    assert given[MASK].tolist() == [[[[True, False]]], [[[True, True]]]]
    assert SHOWN not in given
    given = cross_attention_rows.build_arguments(images(0, 2))
    # A token that attends to nothing is NaN.
    assert given[MASK].tolist() == [[[[True, True]]], [[[True, True]]]]
    assert given[SHOWN].tolist() == [[[[False]]], [[[True]]]]
