"""mlx-lm and mlx-vlm batches: a row's penalties are dropped, hit other rows, or crash.

Why: A batch holds its rows' processors in a list. While no row has processors, the list is not cut
    when rows end, or is dropped, and the lists of two batches are concatenated at any length. The
    processors of a later row then have another row's index, or one past the last row. mlx-lm also
    stores None for a row without processors, and the next step iterates over it. A grammar or a
    penalty is not applied, or applied to another row, or ``'NoneType' object is not iterable``
    stops the engine.
How: After rows end and before batches are joined, every list gets one entry per row; a row without
    processors has an empty list. In mlx-vlm this includes the rows' tokens, which are passed to the
    processors.
Upstream: mlx-lm 0.32.0 fills the lists as requests arrive, and always cuts them (issues 1225, 1472,
    1513, 1657, 1772, 1722); mlx-vlm 0.6.5 fills them before it joins batches (1555, 1574, 1583).
Retire when: No supported release is older than mlx-lm 0.32 and mlx-vlm 0.6.5.
"""

from collections.abc import Sequence
from typing import Any

from ....core.verbs import Patch, after, before
from ..._shared.targets import vlm_generators


def replace_none(batch: Any, /) -> None:
    batch.logits_processors = [row or [] for row in batch.logits_processors]


def cut_lists(batch: Any, /) -> None:
    batch.samplers = cut_list(batch.samplers, len(batch.uids))
    batch.logits_processors = cut_list(batch.logits_processors, len(batch.uids))


def fill_lists(batch: Any, other: Any, /) -> None:
    for one in (batch, other):
        rows = len(one.uids)
        one.logits_processors = fill_list(one.logits_processors, rows)
        one.token_context = fill_list(one.token_context, rows)


def have_processors(batch: Any, other: Any, /) -> bool:
    """Whether a row has processors, or had some, so that its tokens are still recorded."""
    return any(any(one.logits_processors) or bool(one.token_context) for one in (batch, other))


def cut_list(lists: list[Any], rows: int) -> list[Any]:
    return lists if len(lists) <= rows else lists[:rows]


def fill_list(lists: Sequence[Any], rows: int) -> list[Any]:
    """One entry per row: the list's own, or an empty list."""
    return [row or [] for row in lists[:rows]] + [[] for _ in range(rows - len(lists))]


PATCH = Patch(
    id="processor-rows",
    severity="crash",
    targets=(
        *after("mlx_lm.generate:PromptProcessingBatch.extend", replace_none),
        *after("mlx_lm.generate:GenerationBatch.filter", cut_lists),
        *before(vlm_generators("GenerationBatch.extend"), fill_lists, when=have_processors),
    ),
)
