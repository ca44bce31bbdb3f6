import mlx.core as mx

from mlx_patches.patches._shared.image_states import ImageStates, join_states
from mlx_patches.patches.models.cross_attention_rows import patch as cross_attention_rows
from mlx_patches.patches.models.cross_attention_rows.patch import MASK, SHOWN, STATES

from ..releases.models import build_or_skip


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


def test_single_row_keeps_image_until_another_prompt(ungated, beside):
    model = build_or_skip("mlx-vlm:mllama")
    ungated("cross-attention-rows")
    beside("mllama-text")
    ids = mx.array([[3, 1, 4, 1, 5]])
    states = mx.random.normal((1, 8, model.module.config.hidden_size), key=mx.random.key(1))
    mask = mx.zeros((1, 1, ids.shape[1], states.shape[1]))

    def answer(later: mx.array, **images: mx.array) -> mx.array:
        cache = model.make_cache()
        model.module(ids, cache=cache, cross_attention_states=states, cross_attention_mask=mask)
        return model.module(later, cache=cache, **images).logits

    token = ids[:, :1]
    seen = answer(token, cross_attention_states=states)
    assert mx.allclose(answer(token), seen, atol=1e-5)
    cache = model.make_cache()
    model.module(ids, cache=cache, cross_attention_states=states, cross_attention_mask=mask)
    assert cross_attention_rows.find_images(cache[0])
    model.module(ids[:, :2], cache=cache)
    assert cross_attention_rows.find_images(cache[0]) is None
