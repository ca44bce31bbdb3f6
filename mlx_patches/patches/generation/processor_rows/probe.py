"""Adds and removes rows with and without logits processors in one batch.

The model's next token is the last one plus 1. A row's processor changes that to plus ``step``.
"""

from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from ....probes.kit import CountingModel, Result, Target, mx, own_module

# The rows: the turn at which each joins, its first token, how many tokens it generates, and its
# step. A row without processors has step 1. The longer rows stay while others join and leave. When
# all rows with processors have ended, the row of 30 tokens ends before one that joined it: mlx-vlm
# 0.6.0 to 0.6.3 crash there.
_ROWS = (
    (0, 3, 2, 1),
    (0, 7, 30, 1),
    (5, 11, 12, 2),
    (8, 13, 4, 1),
    (8, 17, 12, 3),
    (12, 19, 3, 1),
    (26, 23, 8, 1),
    (32, 29, 5, 1),
    (32, 31, 6, 4),
)
_REMOVED, _REMOVED_AT = 2, 9  # a row that is removed before its end, and its last turn


@dataclass
class _Row:
    turn: int
    first: int
    length: int
    step: int
    calls: int = 0
    tokens: list[int] = field(default_factory=list)

    def processors(self) -> list[Any] | None:
        """The row's processors, or None, as hosts pass them."""
        return [self._process] if self.step > 1 else None

    def _process(self, tokens: Any, logits: Any) -> Any:
        self.calls += 1
        return mx.roll(logits, self.step - 1, axis=-1)


def probe(target: Target) -> Result:
    """Red if a row's tokens, or its processor's calls, differ from those of a solo run."""
    module = own_module(target)
    batch, solo = ([_Row(*one) for one in _ROWS] for _ in range(2))
    _generate(module, batch)
    for row in solo:
        _generate(module, [row])
    for index, (row, same) in enumerate(zip(batch, solo, strict=True)):
        if index == _REMOVED:  # removed before its end: compare its tokens up to there
            tokens, calls = same.tokens[: len(row.tokens)], row.calls
        else:
            tokens, calls = same.tokens, same.calls
        if (row.tokens, row.calls) != (tokens, calls):
            return Result(
                True, f"row {index}: {row.tokens} in {row.calls} calls, solo {tokens} in {calls}"
            )
    return Result(False, "each row generates the tokens of its solo run")


def _generate(module: ModuleType, rows: list[_Row]) -> None:
    if module.__name__ == "mlx_lm.generate":
        sizes = {"prefill_batch_size": 4, "completion_batch_size": 8}
        generator = module.BatchGenerator(CountingModel(), **sizes)
    else:
        generator = _Joining(module)
    uids: dict[int, _Row] = {}
    for turn in range(60):
        if joining := [row for row in rows if row.turn == turn]:
            found = generator.insert(
                [[1, row.first] for row in joining],
                [row.length for row in joining],
                logits_processors=[row.processors() for row in joining],
            )
            uids.update(zip(found, joining, strict=True))
        if turn == _REMOVED_AT and len(uids) > _REMOVED:
            generator.remove([[*uids][_REMOVED]])
        for answer in generator.next()[1]:
            uids[answer.uid].tokens.append(answer.token)


class _Joining:
    """Adds rows as mlx-vlm's generator does: a new batch each turn, then ``extend``."""

    def __init__(self, module: ModuleType):
        self.module, self.count = module, 0
        self.batch: Any = None

    def insert(
        self, prompts: list[list[int]], lengths: list[int], logits_processors: list[Any]
    ) -> range:
        uids = range(self.count, self.count + len(prompts))
        self.count = uids.stop
        last = [prompt[-1] for prompt in prompts]
        batch = self.module.GenerationBatch(
            model=CountingModel(),
            uids=list(uids),
            inputs=mx.array(last),
            prompt_cache=[],
            sampler=lambda logprobs: mx.argmax(logprobs, axis=-1),
            stop_criteria=lambda token: False,
            max_tokens=lengths,
            token_context=[[token] for token in last] if any(logits_processors) else [],
            logits_processors=logits_processors,
        )
        batch.compute_logprobs = False
        if self.batch is None:
            self.batch = batch
        else:
            self.batch.extend(batch)
        return uids

    def remove(self, uids: list[int]) -> None:
        kept = [index for index, uid in enumerate(self.batch.uids) if uid not in uids]
        self.batch.filter(kept)

    def next(self) -> tuple[list[Any], list[Any]]:
        return [], self.batch.next() if self.batch is not None and self.batch.uids else []
