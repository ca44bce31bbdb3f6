"""A row's logits processors are dropped, act on another row, or crash the batch.

Why
    A batch holds its rows' processors in a list. While no row has processors, the list is not cut
    when rows end, or is dropped, and lists of two batches are joined without filling. Processors
    of a later row then have another row's index, or one past the last row. mlx-lm also stores
    None for a row without processors, and the next step iterates over it. A grammar or a penalty
    is not applied, or applied to another row, or ``'NoneType' object is not iterable`` stops the
    engine.
How
    After rows ended and before batches are joined, every list gets one entry a row; a row without
    processors has an empty list. In mlx-vlm this includes the rows' tokens, which are passed to
    the processors.
Upstream
    mlx-lm 0.32.0 fills the lists as requests arrive, and always cuts them (issues 1225, 1472,
    1513, 1657, 1772, 1722); mlx-vlm 0.6.5 fills them before it joins (1555, 1574, 1583).
Retire when
    No supported release is older than mlx-lm 0.32 and mlx-vlm 0.6.5.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ....core.patch import Patch, Target, around
from ..._shared.targets import GENERATORS, at


def prompts_joined(extend: Callable[..., None], batch: Any, *args: Any, **kwargs: Any) -> None:
    """Append rows in prefill to ``batch``; a row without processors gets an empty list."""
    extend(batch, *args, **kwargs)
    batch.logits_processors = [row or [] for row in batch.logits_processors]


def rows_kept(keep: Callable[..., None], batch: Any, *args: Any, **kwargs: Any) -> None:
    """Drop rows of a batch; also cuts the lists that the release leaves uncut."""
    keep(batch, *args, **kwargs)
    batch.samplers = fitted(batch.samplers, len(batch.uids))
    batch.logits_processors = fitted(batch.logits_processors, len(batch.uids))


def rows_joined(extend: Callable[..., None], batch: Any, other: Any) -> None:
    """Append the rows of ``other`` to ``batch``, with one entry a row in each list."""
    if have_processors(batch, other):  # another patch's check may have let this layer run
        for one in (batch, other):
            rows = len(one.uids)
            one.logits_processors = filled(one.logits_processors, rows)
            one.token_context = filled(one.token_context, rows)
    extend(batch, other)


def have_processors(batch: Any, other: Any) -> bool:
    """Whether a row has processors, or had some, so that its tokens are still recorded."""
    return any(any(one.logits_processors) or bool(one.token_context) for one in (batch, other))


def fitted(lists: list[Any], rows: int) -> list[Any]:
    """The list, cut to an entry a row."""
    return lists if len(lists) <= rows else lists[:rows]


def filled(lists: Sequence[Any], rows: int) -> list[Any]:
    """One entry a row: the list's own, or an empty list."""
    return [row or [] for row in lists[:rows]] + [[] for _ in range(rows - len(lists))]


PATCH = Patch(
    id="processor-rows",
    severity="crash",
    every_model=True,
    summary="mlx-lm and mlx-vlm batches: a row's penalties are dropped, hit other rows, or crash",
    targets=(
        Target(
            "mlx-lm",
            "mlx_lm.generate",
            "PromptProcessingBatch.extend",
            around(prompts_joined),
        ),
        Target("mlx-lm", "mlx_lm.generate", "GenerationBatch.filter", around(rows_kept)),
        *at(GENERATORS, {"GenerationBatch.extend": around(rows_joined)}, when=have_processors),
    ),
)
