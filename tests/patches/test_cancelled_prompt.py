"""``cancelled-prompt``: what the remaining rows' caches expect, whoever was cancelled."""

from __future__ import annotations

import itertools

import pytest

from mlx_patches.patches.generation.cancelled_prompt import patch
from mlx_patches.patches.generation.cancelled_prompt.probe import ANSWER, RESTS, read, start

from ..releases.models import prefix_engine


@pytest.fixture
def kind(ungated):
    """The release's class of a batch of prompts, patched."""
    found = prefix_engine().PromptProcessingBatch
    if not hasattr(found, "remove"):
        pytest.skip("this release takes no row out of prompts in reading")
    ungated(patch.PATCH)
    return found


@pytest.mark.parametrize(
    "dropped", [rows for count in (0, 1, 2) for rows in itertools.permutations(range(3), count)]
)
@pytest.mark.parametrize(
    "rests", [RESTS, ((1,), (2, 3, 4), (5, 6, 7, 8, 9)), ((1, 2), (3, 4), (5, 6))]
)
def test_the_rest_reads_its_answer(kind, dropped, rests):
    masked, held, padding = read(kind, dropped, rests)
    assert masked == padding == 0
    assert held == [[*rest, *ANSWER] for row, rest in enumerate(rests) if row not in dropped]


def test_all_rows_may_be_dropped(kind):
    batch = start(kind, RESTS)
    for row in (1, 0, 2):
        batch.remove(row)
    assert batch.uids == [] and batch.prompt_cache == []


@pytest.mark.parametrize("dropped", [(), (0,), (2,), (0, 1), (0, 2), (1, 2)])
def test_left_padding_that_all_rows_have_is_dropped(kind, dropped):
    rests = ((1, 2, 3, 4), (5, 6), (7, 8, 9))
    masked, held, padding = read(kind, dropped, rests, left=True)
    assert masked == padding == 0
    kept = [rest for row, rest in enumerate(rests) if row not in dropped]
    assert [
        tokens[-len(rest) - len(ANSWER) :] for tokens, rest in zip(held, kept, strict=True)
    ] == [[*rest, *ANSWER] for rest in kept]


def keep_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patch, "is_padded", lambda batch: True)
    monkeypatch.setattr(patch, "has_common", lambda batch: False)


MUTANTS = {"cancelled-prompt": keep_padding}
