import mlx.core as mx
import pytest

from mlx_patches.lab import image_scenarios
from mlx_patches.patches.positions.granite4_features import patch as granite4_features
from mlx_patches.patches.positions.granite4_features.patch import FEATURES, MASK
from mlx_patches.probes.batch_invariance import tiny

from ..releases.models import or_skip


def image(length, start=0, layers=2):
    own = mx.arange(start, start + length * layers).reshape(1, length, layers, 1)
    return {FEATURES: own, MASK: mx.ones((1, length), mx.bool_), "more": 7}


def read_arguments(features, cache, length):
    """The first feature and the mask of a release that cuts them again."""
    seen = []

    def call(model, inputs, **kwargs):
        cut = slice(mx.array([1]), mx.array([2]))
        seen.append((kwargs[FEATURES][0][cut], kwargs[MASK][..., cut], kwargs[MASK][..., None]))

    mask = mx.ones(features.shape[:2], mx.bool_)
    given = {FEATURES: features, MASK: mask, "cache": cache}
    granite4_features.call_with_fed(call, None, mx.zeros((1, length)), **given)
    feature, mask, column = seen[0]
    assert mask.shape == feature.shape[:2] and column.shape == (*mask.shape, 1)
    return feature[..., 0].tolist()


class Cache:
    def __init__(self, offset):
        self.offset = offset


def test_features_are_completed_by_row():
    by_feature = mx.arange(2 * 3 * 4 * 1).reshape(2 * 3, 4, 1)
    by_row = granite4_features.order_by_row(by_feature, rows=3)
    assert by_row.shape == (3, 4, 2, 1)
    assert by_row[1, :, 1].tolist() == by_feature[4].tolist()
    given = [None, image(2), {FEATURES: None, MASK: None, "more": 8}]
    rows = granite4_features.complete_rows(given, [3, 2, 1])
    assert [row[FEATURES].shape for row in rows] == [(1, 3, 2, 1), (1, 2, 2, 1), (1, 1, 2, 1)]
    assert [row[MASK].tolist() for row in rows] == [[[False] * 3], [[True] * 2], [[False]]]
    assert not rows[0][FEATURES].any() and rows[1][FEATURES] is given[1][FEATURES]
    assert [row.get("more") for row in rows] == [None, 7, 8]

    features = image(3)[FEATURES]
    assert read_arguments(features, [Cache(mx.array([5]))], 3) == [[0, 2, 4]]
    assert read_arguments(features, None, 3) == [[0, 2, 4]]


@pytest.mark.parametrize(
    "rows",
    [
        [None, {"more": 1}, {FEATURES: None}],
        [image(2), image(3)],
        [{FEATURES: [mx.ones((2, 4))]}, None],
        [{FEATURES: mx.ones((2, 3, 4))}, None],
    ],
    ids=["text", "features each", "another family's lists", "the release's own layout"],
)
def test_complete_rows_are_unchanged(rows):
    assert granite4_features.complete_rows(rows, [3] * len(rows)) is rows


def log_probabilities(whole, prompt, begun=0, **options):
    """Two solo tokens after a prompt, from the release's ``generate_step``."""
    cache = whole.lab.make_cache()
    if begun:
        whole.module.language_model(mx.arange(1, begun + 1)[None], cache=cache)
    inputs = {"pixel_values": None, **prompt.inputs, "prompt_cache": cache, **options}
    ids, inputs["mask"] = inputs.pop("input_ids"), inputs.pop("attention_mask")
    read = image_scenarios.generators.force_tokens(whole.lab, [5, 6], ids, whole.module, **inputs)
    return mx.stack(read[:2])


@pytest.fixture
@or_skip()
def whole():
    return image_scenarios.whole_of(tiny("mlx-vlm", "granite4_vision"))


@pytest.mark.parametrize("number", range(len(image_scenarios.ROWS)))
def test_solo_is_bit_identical(number, whole, ungated):
    prompt = image_scenarios.prompts_of(whole)[number]
    released = log_probabilities(whole, prompt)
    ungated("granite4-features")
    assert mx.array_equal(log_probabilities(whole, prompt), released)


@pytest.mark.parametrize("begun", [0, 5], ids=["first turn", "later turn"])
def test_solo_chunked_prefill(begun, whole, ungated):
    ungated("granite4-features")
    prompt = image_scenarios.prompts_of(whole)[1]
    at_once = log_probabilities(whole, prompt, begun, prefill_step_size=None)
    in_chunks = log_probabilities(whole, prompt, begun, prefill_step_size=4)
    assert mx.allclose(at_once, in_chunks, atol=1e-5)
