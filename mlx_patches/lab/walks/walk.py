"""Run a walk: perform its operations on the release's engine, then check its rows."""

import copy
import importlib
import random
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from ...core.arrays import mx
from ...evidence.results import NotApplicable
from .. import LabModel, engine, rows
from ..cache_arrays import layers
from ..engine import MARKS, unless_refused
from ..generators import read_answer
from . import engines, oracle
from .engines import Engine, Row
from .program import Operation, Program

# An engine without a token in this many steps is stuck.
IDLE = 150
# The images of a prompt, in patches.
IMAGES = ((2, 2), (3, 2))
# Caches whose ``offset`` equals their number of tokens.
COUNTED = {"KVCache", "RotatingKVCache", "QuantizedKVCache", "ChunkedKVCache"}


@dataclass
class Kept:
    """A row's kept cache, its text, and the number of its quantized tokens."""

    text: list[int]
    cache: list[Any]
    quantized: int = 0


def run(model: LabModel, program: Program) -> list[str]:
    """Run a walk and describe its failures; empty if there are none."""
    walk = Walk(model, program)
    try:
        with engines.small_steps(program.options.get("grow", 0)), unless_refused():
            walk.run()
        walk.failures += [
            found
            for row in walk.rows.values()
            if row.output and (found := oracle.check(model, program.options, row))
        ]
    except NotApplicable:
        if not walk.failures:
            raise
    except Exception as error:
        if "quantization group size" in str(error):
            raise NotApplicable("the tiny model's heads are narrower than a group") from error
        walk.failures.append(engine.where(error))
    finally:
        walk.close()
    return walk.failures


def reason(failure: str) -> str:
    """The failure without the details that change during shrinking."""
    error = re.fullmatch(r"(\w+): .*(\(\S+:\d+\))", failure, re.DOTALL)
    if error:
        return f"{error[1]} {error[2]}"
    text = re.sub(r"token \d+ instead of \d+", "log-probabilities differ by #", failure)
    return re.sub(r"\d[\d.e+-]*", "#", text)


class Walk:
    """The engines of a walk, their rows, and the kept caches."""

    def __init__(self, model: LabModel, program: Program):
        self.model, self.program = model, program
        self.engines: dict[int, Engine] = {}
        self.prefixes: dict[int, Any] = {}
        self.rows: dict[int, Row] = {}
        self.live: dict[tuple[int, int], Row] = {}
        self.kept: dict[int, Kept] = {}
        self.failures: list[str] = []
        engine.forget(model)

    def run(self) -> None:
        together = groupby(self.program.operations, lambda one: (one.verb, one["engine"]))
        for (verb, _), operations in together:
            if verb == "add":
                self._add(list(operations))
                continue
            for operation in operations:
                getattr(self, f"_{verb}")(operation)
        self._drain(*self.engines)

    def close(self) -> None:
        for number in [*self.engines]:
            self._close(number)
        engine.unmark()
        engine.forget(self.model)

    def _engine(self, number: int) -> Engine:
        prefix = self.program.options.get("prefix")
        if prefix and number not in self.prefixes:
            self.prefixes[number] = engines.prefix_cache(small=prefix == 1)
        if number not in self.engines:
            own = self.prefixes.get(number)
            self.engines[number] = engines.start(self.model, self.program.options, own)
        return self.engines[number]

    def _add(self, operations: Sequence[Operation]) -> None:
        new = [row for row in map(self._row, operations) if row]
        if not new:
            return
        for row, uid in zip(new, self._engine(new[0].engine).add(new), strict=True):
            row.uid, row.cache = uid, None
            if (row.engine, uid) in self.live:
                self.failures.append(f"row {row.number}: another row has its uid")
            self.rows[row.number] = self.live[row.engine, uid] = row

    def _row(self, operation: Operation) -> Row | None:
        """The row that an operation adds; None if the cache to continue from is missing."""
        number, model = operation["row"], self.model
        row = Row(number, text_of(model, operation), operation["tokens"], operation["engine"])
        row.processor, row.segment = bool(operation["processor"]), operation["segment"]
        row.sampler, row.rank = engines.sampler_of(model, operation["sampler"], number)
        if operation["images"]:
            row.image = engine.with_image(model, row.prompt, *IMAGES[: operation["images"]])
            row.prompt = list(row.image.tokens)
        if not operation["after"]:
            return row
        kept = self._finish(operation["after"])
        return self._continue(row, kept, operation) if kept else None

    def _continue(self, row: Row, kept: Kept, operation: Operation) -> Row:
        caches = importlib.import_module("mlx_lm.models.cache")
        text, cache = list(kept.text), copy.deepcopy(kept.cache)
        trim = min(operation["trim"], len(text) - 1)
        if trim and caches.can_trim_prompt_cache(cache):
            if (done := caches.trim_prompt_cache(cache, trim)) != trim:
                self.failures.append(f"row {row.number}: {done} of {trim} tokens are trimmed")
            text, cut = text[:-trim], text[-trim:]
            row.prompt = cut if operation["again"] else row.prompt
        row.history, row.cache, row.quantized = text, cache, min(kept.quantized, len(text))
        return row

    def _step(self, operation: Operation) -> None:
        for _ in range(operation["count"]):
            self._steps()

    def _steps(self) -> bool:
        """Step each engine once; returns whether any token was generated."""
        answers = [
            (number, answer)
            for number, one in self.engines.items()
            for answer in one.generator.answers()
        ]
        for number, answer in answers:
            self._add_answer(number, answer)
        return bool(answers)

    def _add_answer(self, number: int, answer: Any) -> None:
        row = self.live.get((number, answer.uid))
        if row is None:
            self.failures.append("a token of a row that is not there")
            return
        row.output.append(read_answer(answer))
        if answer.finish_reason:
            self._end(row)
            if len(row.output) != row.count:
                self.failures.append(f"row {row.number}: {len(row.output)} tokens, not {row.count}")
            if (cache := getattr(answer, "prompt_cache", None)) is not None:
                self._keep(row, cache, answer.all_tokens)

    def _end(self, row: Row) -> None:
        row.ended = True
        del self.live[row.engine, row.uid]

    def _keep(self, row: Row, cache: list[Any], tokens: Sequence[int]) -> None:
        """Keep a row's cache after checking its text and length."""
        text = list(tokens)
        if text != (row.whole + row.tokens)[: len(text)]:
            self.failures.append(f"row {row.number}: its cache comes with another text")
        if not text:
            return
        for layer in layers(cache):
            offset = getattr(layer, "offset", None)
            counted = type(layer).__name__ in COUNTED and layer.keys is not None
            if counted and isinstance(offset, int) and offset != len(text):
                kind = type(layer).__name__
                self.failures.append(f"row {row.number}: {kind} counts {offset} of {len(text)}")
                break
        self.kept[row.number] = Kept(text, cache, row.quantized)

    def _present(self, operation: Operation) -> Row | None:
        row = self.rows.get(operation["row"])
        return None if row is None or row.ended else row

    def _drop(self, operation: Operation) -> None:
        if row := self._present(operation):
            left = self.engines[row.engine].remove(row.uid, bool(operation["keep"]))
            if left is not None:
                self._end(row)
            if left:
                self._keep(row, *left)

    def _copy(self, operation: Operation) -> None:
        row = self._present(operation)
        if row and isinstance(one := self.engines[row.engine], engines.LmEngine):
            self._keep(row, *one.copy(row.uid))

    def _save(self, operation: Operation) -> None:
        if kept := self._finish(operation["row"]):
            caches = importlib.import_module("mlx_lm.models.cache")
            with tempfile.TemporaryDirectory() as folder:
                file = str(Path(folder, "cache.safetensors"))
                caches.save_prompt_cache(file, kept.cache)
                kept.cache = caches.load_prompt_cache(file)
                mx.eval([layer.state for layer in kept.cache])

    def _quantize(self, operation: Operation) -> None:
        kept = self._finish(operation["row"])
        if kept and not kept.quantized:
            cache = oracle.quantize_layers(kept.cache)
            if any(new is not old for new, old in zip(cache, kept.cache, strict=True)):
                kept.cache, kept.quantized = cache, len(kept.text)

    def _solo(self, operation: Operation) -> None:
        text = text_of(self.model, operation)
        row = rows.Row((*text, *text[:1] * 3), (len(text),))
        rows.decode(self.model, [row], rows.prefill_solo(self.model, row), 3)

    def _renew(self, operation: Operation) -> None:
        number = operation["engine"]
        self._drain(number)
        if number in self.engines:
            self._close(number)

    def _close(self, number: int) -> None:
        release = self.engines.pop(number).release
        if hasattr(release, "close"):
            release.close()

    def _finish(self, number: int) -> Kept | None:
        """The kept cache of a row; if there is none yet, the row is finished first."""
        row = self.rows.get(number)
        self._until(lambda: row is None or row.ended or number in self.kept)
        return self.kept.get(number)

    def _drain(self, *numbers: int) -> None:
        self._until(lambda: not any(number in numbers for number, _ in self.live))

    def _until(self, reached: Callable[[], bool]) -> None:
        idle = 0
        while not reached():
            idle = 0 if self._steps() else idle + 1
            if idle == IDLE:
                raise RuntimeError(f"no token in {IDLE} steps")


def text_of(model: LabModel, operation: Operation) -> list[int]:
    """The start of a text, without image tokens."""
    chance = random.Random(1000 + operation["text"])
    largest = model.vocabulary - len(MARKS) - 2
    return [chance.randint(1, largest) for _ in range(operation["length"])]
