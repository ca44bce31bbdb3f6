import itertools

import pytest

from mlx_patches.lab import engine
from mlx_patches.lab.walks import program, walk
from mlx_patches.patches._shared import rows as cache_rows
from mlx_patches.patches.generation.cancelled_prompt.probe import (
    ANSWER,
    RESTS,
    feed_rest,
    start_batch,
)

from ..releases.models import build_or_skip, prefix_engine


@pytest.fixture
def kind(ungated):
    found = prefix_engine().PromptProcessingBatch
    if not hasattr(found, "remove"):
        pytest.skip("this release removes no row during prefill")
    ungated("cancelled-prompt")
    return found


@pytest.mark.parametrize(
    "dropped", [rows for count in (0, 1, 2) for rows in itertools.permutations(range(3), count)]
)
@pytest.mark.parametrize(
    "rests", [RESTS, ((1,), (2, 3, 4), (5, 6, 7, 8, 9)), ((1, 2), (3, 4), (5, 6))]
)
def test_remaining_rows_are_right(kind, dropped, rests):
    masked, held, padding = feed_rest(kind, dropped, rests)
    assert masked == padding == 0
    assert held == [[*rest, *ANSWER] for row, rest in enumerate(rests) if row not in dropped]


def test_all_rows_can_be_cancelled(kind):
    batch = start_batch(kind, RESTS)
    for row in (1, 0, 2):
        batch.remove(row)
    assert batch.uids == [] and batch.prompt_cache == []


@pytest.mark.parametrize("dropped", [(), (0,), (2,), (0, 1), (0, 2), (1, 2)])
def test_common_left_padding_is_removed(kind, dropped):
    rests = ((1, 2, 3, 4), (5, 6), (7, 8, 9))
    masked, held, padding = feed_rest(kind, dropped, rests, left=True)
    assert masked == padding == 0
    kept = [rest for row, rest in enumerate(rests) if row not in dropped]
    assert [
        tokens[-len(rest) - len(ANSWER) :] for tokens, rest in zip(held, kept, strict=True)
    ] == [[*rest, *ANSWER] for rest in kept]


# A request is cancelled during prefill: the only padded one, the longest, the longest after others
# were fed without it, and the longest of a left-padded batch.
CANCELLED = (
    "mlx-vlm:plamo2 prefill_batch_size=2 prefix=1; add row=1 text=1 length=1 tokens=1; "
    "add row=2 text=1 length=2 tokens=1; add row=5 text=1 length=2 tokens=1; "
    "add row=6 text=1 length=5 tokens=3; step count=3; drop row=5",
    "mlx-vlm:qwen3_5_text prefill_batch_size=2 prefix=1; add row=1 text=1 length=1 tokens=1; "
    "add row=2 length=2 tokens=1; add row=3 length=2 tokens=2; add row=4 length=5 tokens=1; "
    "step count=3; drop row=4",
    "mlx-vlm:qwen3_5 prefix=1; add row=1 text=1 length=9 tokens=2; step count=2; "
    "add row=4 length=30 tokens=5; add row=6 text=1 length=13 tokens=5; step count=5; drop row=4",
    "mlx-vlm:qwen2_vl prefill_step_size=3 prefill_batch_size=2; add row=1 length=3 tokens=4; "
    "add row=2 length=20 tokens=4; step count=2; drop row=2",
)


def run_walk(line: str) -> list[str]:
    model = build_or_skip(line.split()[0])
    batch = getattr(engine.generate_module(model), "PromptProcessingBatch", None)
    if not hasattr(batch, "remove"):
        pytest.skip("the release removes no row during prefill")
    return walk.run(model, program.parse(line))


@pytest.mark.parametrize("line", CANCELLED)
def test_cancel_during_prefill(line, patched):
    assert run_walk(line) == []


@pytest.mark.parametrize("line", CANCELLED[1:3])
def test_mutant_keeps_merged_padding(monkeypatch, line, patched):
    recurrent = pytest.importorskip("mlx_patches.patches.models.recurrent_padding.patch")
    monkeypatch.setattr(recurrent, "restore_caches", lambda cache, own: None)
    assert run_walk(line)


def test_mutant_forgets_removed_padding(monkeypatch, patched):
    write = cache_rows.write_rows
    monkeypatch.setattr(
        cache_rows, "write_rows", lambda layer, held, dropped=(): write(layer, held)
    )
    assert run_walk(CANCELLED[2])


def test_mutant_forgets_announced_padding(monkeypatch, patched):
    monkeypatch.setattr(cache_rows, "RIGHT", ())
    assert run_walk(CANCELLED[1])
