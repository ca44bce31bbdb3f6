"""Passes out-of-range numbers to samplers and processors."""

import queue
import threading
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from ....probes.kit import Result, Target, class_of, mx, require

_SIZE = 5  # of the vocabulary
_ODD = 10**20
_BIAS = {2: 1.0, _SIZE: 1.0, -1: 1.0, 999: 1.0}


def probe(target: Target) -> Result:
    """Red if such a number reaches an array or raises."""
    if target.name == "ResponseGenerator.generate":
        return _pass_seeds(class_of(target))
    function = require(target)
    if target.name != "apply_top_k":
        return _bias_logits(function)
    kept = function(mx.array([[0.0, 1.0, 2.0, 3.0, 4.0]]), _SIZE)
    return Result(kept.tolist() != [[0.0, 1.0, 2.0, 3.0, 4.0]], f"keeps {kept.tolist()}")


def _bias_logits(make: Any) -> Result:
    logits: Any = Logits()
    for processor in make(logit_bias=_BIAS):
        processor([], logits)
    outside = [index for index in logits.written if not 0 <= index < _SIZE]
    if outside or 2 not in logits.written:
        return Result(True, f"writes the logits of tokens {logits.written}, of {_SIZE}")
    for odd in (
        {"logit_bias": {_ODD: 1.0}},
        {"repetition_penalty": 1.5, "repetition_context_size": _ODD},
    ):
        for processor in make(**odd):
            mx.eval(processor(mx.array([1, 2]), mx.zeros((1, _SIZE))))
    return Result(False, f"writes the logits of tokens {logits.written}")


class Logits:
    """Logits that record the tokens for which they are written."""

    shape = (1, _SIZE)

    def __init__(self) -> None:
        self.written: list[int] = []

    @property
    def at(self) -> Any:
        return self

    def __getitem__(self, key: Any) -> Any:
        self.written += key[-1].tolist()
        return self

    def __setitem__(self, key: Any, value: Any) -> None:
        pass

    def __add__(self, values: Any) -> Any:
        return self

    def add(self, values: Any) -> Any:
        return self


def _pass_seeds(kind: Any) -> Result:
    """Red if the generation thread would seed with a number that raises."""

    def refuse(request: tuple[queue.Queue[Any], Any, Any]) -> None:
        request[0].put(LookupError("seen"))

    server = object.__new__(kind)
    vars(server).update(
        requests=SimpleNamespace(put=refuse),
        _generation_thread=threading.current_thread(),
        _generation_failed=False,
    )
    for seed in (-1, _ODD, 7):
        options = SimpleNamespace(seed=seed)
        with suppress(LookupError):
            server.generate(None, options)
        mx.random.seed(options.seed)
    return Result(options.seed != 7, "seeds are cut")
