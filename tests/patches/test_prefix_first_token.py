from types import SimpleNamespace

import pytest

from mlx_patches.patches.generation.prefix_first_token import patch
from mlx_patches.patches.generation.prefix_first_token.probe import (
    RESTS,
    Repeats,
    find_first_tokens,
)

from ..releases.models import prefix_engine

WANT = [rest[-1] for rest in RESTS]


@pytest.fixture
def kind(ungated):
    found = prefix_engine().PromptProcessingBatch
    ungated("vlm-prefix-first-token")
    return found


class Recorder(Repeats):
    def __init__(self, whole=True, wrapped=True):
        self.whole, self.wrapped, self.calls = whole, wrapped, []

    def __call__(self, tokens, **kwargs):
        self.calls.append(tokens.shape[1])
        logits = super().__call__(tokens)
        if not self.whole and "n_to_process" in kwargs:
            logits = logits[:, -1:]
        return SimpleNamespace(logits=logits) if self.wrapped else logits


@pytest.mark.parametrize("size", [1, 2, 3, 5, 6])
@pytest.mark.parametrize("wrapped", [True, False])
def test_first_tokens_with_any_chunk_size(kind, size, wrapped):
    model = Recorder(wrapped=wrapped)
    assert find_first_tokens(kind, RESTS, size, model) == WANT
    assert sum(model.calls) == len(RESTS[0])
    assert max(model.calls) <= size


def test_rows_end_together_or_by_last_column(kind):
    assert find_first_tokens(kind, RESTS, 4, Recorder(whole=False)) == WANT
    rests = ((7,), (1, 2, 3, 4, 5), (9,), (6, 8, 2, 3))
    assert find_first_tokens(kind, rests, 2) == [7, 5, 9, 3]


@pytest.mark.parametrize("size", [2, None])
def test_equal_remainders_are_unchanged(kind, size):
    model = Recorder()
    assert find_first_tokens(kind, ((1, 2, 3, 4), (5, 6, 7, 8)), size, model) == [4, 8]
    assert model.calls[0] == (size or 4)


def test_single_chunk_and_failing_model(kind):
    model = Recorder()
    assert find_first_tokens(kind, RESTS, None, model) == WANT
    assert model.calls == [6]
    batch = SimpleNamespace(model=(model := lambda: 1 / 0))
    with pytest.raises(ZeroDivisionError), patch.next_output(batch, lambda output: None):
        batch.model()
    assert batch.model is model
