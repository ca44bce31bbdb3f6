"""``prefix-dropped-row``: what the remaining rows' caches expect, whoever was cancelled."""

from __future__ import annotations

import itertools

import pytest

from mlx_patches.patches.generation.prefix_dropped_row import patch
from mlx_patches.patches.generation.prefix_dropped_row.probe import ANSWER, RESTS, read, start

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


def keep_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patch, "is_padded", lambda batch: True)
    monkeypatch.setattr(patch, "has_common", lambda pads: False)


MUTANTS = {"prefix-dropped-row": keep_padding}
