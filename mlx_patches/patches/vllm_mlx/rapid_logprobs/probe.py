"""Reads log-probabilities: without text, from another thread, and of merged outputs."""

import contextvars
import threading
from types import SimpleNamespace
from typing import Any

from ....probes.kit import Result, Target, import_module, mx, own_class_of
from ..._shared.request_fields import FIELDS

_CHANCES = [-1.0, -2.0, -0.5]
_TOKENIZER = SimpleNamespace(decode=lambda ids: f"w{ids[0]}")


def probe(target: Target) -> Result:
    """Red if a token of the answer has no log-probability, or if reading it raises."""
    if target.name.startswith("Scheduler"):
        found = extract(process(own_class_of(target)), new_text="w")
    elif target.name.startswith("RequestOutputCollector"):
        found = merge(own_class_of(target))
    else:
        found = extract(mx.array(_CHANCES))
    return Result(found != [_CHANCES[1]], f"{found} for one token, whose value is {_CHANCES[1]}")


def merge(kind: Any) -> list[float]:
    """The log-probabilities of the second of two tokens whose outputs were merged."""
    output = import_module("rapid_mlx.request").RequestOutput
    row, collector = mx.array(_CHANCES), make(kind)
    for text in ("a", "b"):
        collector.put(output("1", [1], text, logprobs=row))
    merged = collector.get_nowait()
    return extract(merged.logprobs, new_text="ab", tokens=merged.new_token_ids)[1:]


def extract(row: Any, **changed: Any) -> list[float]:
    """The log-probabilities of a chunk of token 1, by default without text."""
    helpers = import_module("rapid_mlx.service.helpers")
    output = import_module("rapid_mlx.engine.base").GenerationOutput
    chunk = output(**{"text": "", "new_text": "", "tokens": [1], "finished": False, **changed})
    chunk.logprobs = row
    entries = helpers._extract_streaming_token_logprobs(chunk, _TOKENIZER, 1)
    return [entry.logprob for entry in entries]


def make(kind: Any, wanted: bool = True) -> Any:
    """An object that a request's task makes; ``wanted``: with log-probabilities."""
    context = contextvars.copy_context()
    context.run(FIELDS.set, {"logprobs": wanted})
    return context.run(kind)


def process(kind: Any, wanted: bool = True) -> Any:
    """A lazy row of log-probabilities, which the scheduler processes in another thread."""
    scheduler, rows = kind.__new__(kind), list[Any]()
    params = make(import_module("rapid_mlx.request").SamplingParams, wanted)
    scheduler.requests = {"1": SimpleNamespace(sampling_params=params)}
    scheduler.uid_to_request_id, scheduler.running = {1: "1"}, {}

    def run() -> None:
        with mx.stream(mx.new_stream(mx.cpu)):
            rows.append(mx.array([_CHANCES]).squeeze(0))
        scheduler._process_batch_responses([SimpleNamespace(uid=1, logprobs=rows[0])])

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return rows[0]
