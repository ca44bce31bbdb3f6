"""``vlm-prefix-first-token``: the logits of a row's first token, and what stays unchanged."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from mlx_patches.patches.generation.prefix_first_token import patch
from mlx_patches.patches.generation.prefix_first_token.probe import RESTS, Repeats, first_tokens

from ..releases.models import prefix_engine

WANT = [rest[-1] for rest in RESTS]


@pytest.fixture
def kind(ungated):
    """The release's class of a batch of prompts, patched."""
    found = prefix_engine().PromptProcessingBatch
    ungated("vlm-prefix-first-token")
    return found


class Seen(Repeats):
    """Notes how many tokens each call gets, and answers in the releases' other ways."""

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
def test_any_size_of_piece_gives_the_first_tokens(kind, size, wrapped):
    model = Seen(wrapped=wrapped)
    assert first_tokens(kind, RESTS, size, model) == WANT
    assert sum(model.calls) == len(RESTS[0])
    assert max(model.calls) <= size


def test_a_model_may_answer_with_the_last_column_of_a_piece(kind):
    assert first_tokens(kind, RESTS, 4, Seen(whole=False)) == WANT


def test_rows_that_end_together_and_the_order_of_rows(kind):
    rests = ((7,), (1, 2, 3, 4, 5), (9,), (6, 8, 2, 3))
    assert first_tokens(kind, rests, 2) == [7, 5, 9, 3]


@pytest.mark.parametrize("size", [2, None])
def test_rests_of_one_length_are_processed_as_before(kind, size):
    model = Seen()
    assert first_tokens(kind, ((1, 2, 3, 4), (5, 6, 7, 8)), size, model) == [4, 8]
    assert model.calls[0] == (size or 4)


def test_in_one_piece_nothing_is_cut(kind):
    model = Seen()
    assert first_tokens(kind, RESTS, None, model) == WANT
    assert model.calls == [6]


def test_the_model_is_itself_again_when_it_fails():
    batch = SimpleNamespace(model=(model := lambda: 1 / 0))
    with pytest.raises(ZeroDivisionError), patch.next_output(batch, lambda output: None):
        batch.model()
    assert batch.model is model
