import pytest

from mlx_patches.patches.generation.vlm_prefix_penalty.probe import batch_of

from ..releases.models import prefix_engine


@pytest.fixture
def kind(ungated):
    found = prefix_engine().PromptProcessingBatch
    ungated("vlm-prefix-penalty")
    return found


def test_rows_see_own_prompts(kind):
    meta = [{"full_input_ids": [1, 2, 3], "prefix_len": 2}, None, {"prefix_len": 0}]
    batch = batch_of(kind, [[3], [4, 5], [6]], meta)
    assert batch._token_context == [[1, 2, 3], [4, 5], [6]]
    assert batch._input_ids.shape == (3, 2)
    batch._token_context[0].append(9)
    assert meta[0]["full_input_ids"] == [1, 2, 3]


@pytest.mark.parametrize("processors", [[None, None], []])
def test_nothing_without_processors(kind, processors):
    meta = [{"full_input_ids": [1, 2, 3], "prefix_len": 2}, None]
    assert batch_of(kind, [[3], [4]], meta, processors)._token_context == []


def test_nothing_without_prefix_cache(kind):
    assert batch_of(kind, [[3], [4, 5]], None)._token_context == [[3], [4, 5]]
