"""A row's logits processors are dropped, act on another row, or end the batch.

Why
    A batch holds its rows' processors in a list. As long as no row has any, the list is not
    cut when rows end, or is thrown away, and other lists are joined as they are: when a row with
    processors comes, they stand at another row's place, or past the last. mlx-lm also writes
    None for rows without any, and the next step iterates over it. A grammar or a penalty is not
    applied, or to another's answer, or ``'NoneType' object is not iterable`` ends the engine.
How
    Every list has an entry a row after rows ended and before batches are joined, and the entry
    of a row without processors is an empty list. In mlx-vlm that goes for the rows' tokens too,
    which processors are told.
Upstream
    mlx-lm 0.32.0 fills the lists as requests come in, and cuts them always (issues 1225, 1472,
    1513, 1657, 1772, 1722); mlx-vlm 0.6.5 fills them before it joins (1555, 1574, 1583).
Retire when
    No supported release is older than mlx-lm 0.32 and mlx-vlm 0.6.5.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...core.patch import Patch, Target, around


def prompts_joined(extend: Callable[..., None], batch: Any, *args: Any, **kwargs: Any) -> None:
    """Rows whose prompts are read, after those of ``batch``."""
    extend(batch, *args, **kwargs)
    batch.logits_processors = [row or [] for row in batch.logits_processors]


def rows_kept(keep: Callable[..., None], batch: Any, *args: Any, **kwargs: Any) -> None:
    """Drop all rows of a batch but some; a list in which no row has anything is not cut."""
    keep(batch, *args, **kwargs)
    batch.samplers = fitted(batch.samplers, len(batch.uids))
    batch.logits_processors = fitted(batch.logits_processors, len(batch.uids))


def rows_joined(extend: Callable[..., None], batch: Any, other: Any) -> None:
    """The rows of ``other`` after those of ``batch``."""
    if told(batch) or told(other):
        for one in (batch, other):
            rows = len(one.uids)
            one.logits_processors = filled(one.logits_processors, rows)
            one.token_context = filled(one.token_context, rows)
    extend(batch, other)


def told(batch: Any) -> bool:
    """Whether a row of a batch has processors, or had some and is still told its tokens."""
    return any(batch.logits_processors) or bool(batch.token_context)


def fitted(lists: list[Any], rows: int) -> list[Any]:
    """The entries of so many rows."""
    return lists if len(lists) <= rows else lists[:rows]


def filled(lists: Sequence[Any], rows: int) -> list[Any]:
    """The entries of so many rows, an empty list for each that lacks one."""
    return [row or [] for row in lists[:rows]] + [[] for _ in range(rows - len(lists))]


PATCH = Patch(
    id="processor-rows",
    summary="a row's logits processors are dropped, act on another row, or end the batch",
    targets=(
        Target(
            "mlx-lm",
            "mlx_lm.generate",
            "PromptProcessingBatch.extend",
            around(prompts_joined),
        ),
        Target("mlx-lm", "mlx_lm.generate", "GenerationBatch.filter", around(rows_kept)),
        *(
            Target("mlx-vlm", module, "GenerationBatch.extend", around(rows_joined))
            for module in ("mlx_vlm.generate", "mlx_vlm.generate.ar")
        ),
    ),
    probe="mlx_patches.probes.processor_rows:probe",
    module=__name__,
)
