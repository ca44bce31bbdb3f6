from types import SimpleNamespace

import pytest

from mlx_patches.lab.scenarios import SCENARIOS
from mlx_patches.patches.models.kimi_states import patch

from ..releases.models import applicable, build_or_skip

OTHERS = ("offset-alias", "mask-by-offset", "empty-cache-ops", "recurrent-padding")


def test_layer_sees_two_slots():
    cache = SimpleNamespace(cache=[None] * 4, lengths=7)
    view = patch.TwoSlots(cache)
    assert list(view) == [None, None]
    view[0], view[1] = (1, 2, 3), 4
    assert cache.cache == [1, 2, 3, 4]
    assert list(view) == [(1, 2, 3), 4]
    assert view.lengths == 7

    given = []
    old = SimpleNamespace(cache=[(1, 2, 3), 4])

    def layer(layer, x, mask=None, cache=None):
        given.append(cache)

    for cache in (None, old):
        patch.show_two_slots(layer)(None, None, cache=cache)
    assert given == [None, old]


@pytest.mark.parametrize("name", ["extend", "filter", "history"])
def test_rows_join_and_leave(name, beside):
    model = build_or_skip("mlx-lm:kimi_linear")
    beside(*OTHERS, "kimi-states")
    cell = applicable(SCENARIOS[name](model))
    assert cell.verdict == "green", cell.detail
