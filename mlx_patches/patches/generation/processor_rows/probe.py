"""Adds and removes rows with and without logits processors in one batch.

The model's next token is the last one plus 1. A row's processor changes that to plus ``step``.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from ....core.patch import Target
from ....probes import NotApplicable, Result

_VOCABULARY = 128
# Turn to the rows that join then: first token, how many tokens they generate, and step. A row
# without processors has step 1. The longer rows stay while others join and leave. When all rows
# with processors have ended, the row of 30 tokens ends before one that joined it: mlx-vlm 0.6.0 to
# 0.6.3 crash there.
_JOINING = {
    0: [(3, 2, 1), (7, 30, 1)],
    5: [(11, 12, 2)],
    8: [(13, 4, 1), (17, 12, 3)],
    12: [(19, 3, 1)],
    26: [(23, 8, 1)],
    32: [(29, 5, 1), (31, 6, 4)],
}
_REMOVED = {9: 2}  # turn to the row that is removed then


@dataclass
class _Row:
    first: int
    length: int
    step: int
    calls: int = 0
    said: list[int] = field(default_factory=list)

    def processors(self) -> list[Any] | None:
        """The row's processors; None for none, as hosts pass it."""
        return [self._process] if self.step > 1 else None

    def _process(self, tokens: Any, logits: Any) -> Any:
        import mlx.core as mx

        self.calls += 1
        return mx.roll(logits, self.step - 1, axis=-1)


class _Counting:
    """A model without layers whose next token is the last one plus 1."""

    layers: tuple[Any, ...] = ()

    def __call__(self, tokens: Any, cache: Any = None, **kwargs: Any) -> Any:
        import mlx.core as mx

        return mx.eye(_VOCABULARY)[(tokens + 1) % _VOCABULARY] * 10.0

    def make_cache(self) -> list[Any]:
        return []


def probe(target: Target) -> Result:
    """Red where a row's tokens, or the number of calls of its processor, differ from alone."""
    module = importlib.import_module(target.module)
    batch = getattr(module, "GenerationBatch", None)
    if batch is None or batch.__module__ != target.module:
        raise NotApplicable(f"{target.module} defines no GenerationBatch")
    generate = _prompted if target.distribution == "mlx-lm" else _joined
    together = _rows()
    generate(module, together.items())
    alone = _rows()
    for turn, rows in alone.items():
        for row in rows:
            generate(module, [(turn, [row])])
    pairs = zip(_in_order(together), _in_order(alone), strict=True)
    for index, (row, same) in enumerate(pairs):
        if index in _REMOVED.values():  # removed before its end: compare its tokens up to there
            said, calls = same.said[: len(row.said)], row.calls
        else:
            said, calls = same.said, same.calls
        if (row.said, row.calls) != (said, calls):
            return Result(
                True, f"row {index}: {row.said} in {row.calls} calls, alone {said} in {calls}"
            )
    return Result(False, "each row generates the same tokens as alone")


def _rows() -> dict[int, list[_Row]]:
    return {turn: [_Row(*one) for one in rows] for turn, rows in _JOINING.items()}


def _in_order(rows: dict[int, list[_Row]]) -> list[_Row]:
    return [row for joining in rows.values() for row in joining]


def _prompted(module: ModuleType, joining: Iterable[tuple[int, list[_Row]]]) -> None:
    """Let rows join through the release's ``BatchGenerator``."""
    generator = module.BatchGenerator(_Counting(), prefill_batch_size=4, completion_batch_size=8)
    waiting = dict(joining)
    uids: dict[int, _Row] = {}
    order: list[int] = []
    for turn in range(60):
        rows = waiting.get(turn, [])
        found = (
            generator.insert(
                [[1, row.first] for row in rows],
                [row.length for row in rows],
                logits_processors=[row.processors() for row in rows],
            )
            if rows
            else []
        )
        order += found
        uids.update(zip(found, rows, strict=True))
        if turn in _REMOVED and len(order) > _REMOVED[turn]:
            generator.remove([order[_REMOVED[turn]]])
        for answer in generator.next()[1]:
            uids[answer.uid].said.append(answer.token)


def _joined(module: ModuleType, joining: Iterable[tuple[int, list[_Row]]]) -> None:
    """Let rows join as the release's generator does: a new batch each turn, then ``extend``."""
    import mlx.core as mx

    waiting = dict(joining)
    uids: dict[int, _Row] = {}
    order: list[int] = []
    batch: Any = None
    for turn in range(60):
        rows = waiting.get(turn, [])
        if rows:
            found = list(range(len(order), len(order) + len(rows)))
            order += found
            uids.update(zip(found, rows, strict=True))
            told = any(row.processors() for row in rows)
            other = module.GenerationBatch(
                model=_Counting(),
                uids=found,
                inputs=mx.array([row.first for row in rows]),
                prompt_cache=[],
                sampler=lambda logprobs: mx.argmax(logprobs, axis=-1),
                stop_criteria=lambda token: False,
                max_tokens=[row.length for row in rows],
                token_context=[[row.first] for row in rows] if told else [],
                logits_processors=[row.processors() for row in rows],
            )
            other.compute_logprobs = False
            if batch is None:
                batch = other
            else:
                batch.extend(other)
        if batch is None:
            continue
        if turn in _REMOVED and _REMOVED[turn] in batch.uids:
            batch.filter([i for i, uid in enumerate(batch.uids) if uid != _REMOVED[turn]])
        if batch.uids:
            for answer in batch.next():
                uids[answer.uid].said.append(answer.token)
