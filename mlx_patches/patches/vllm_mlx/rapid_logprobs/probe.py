"""Reads the log-probabilities of a token without text, and of one that another thread made."""

import importlib
import threading
from types import SimpleNamespace
from typing import Any

from ....probes.kit import Result, Target, mx, own_class_of

_CHANCES = [-1.0, -2.0, -0.5]
_TOKENIZER = SimpleNamespace(decode=lambda ids: f"w{ids[0]}")


def probe(target: Target) -> Result:
    """Red if a token of the answer has no log-probability, or if reading it raises."""
    if target.name.startswith("Scheduler"):
        found = extract(process(own_class_of(target)), new_text="w")
    else:
        found = extract(mx.array(_CHANCES))
    return Result(found != [_CHANCES[1]], f"{found} for one token, whose value is {_CHANCES[1]}")


def extract(row: Any, **changed: Any) -> list[float]:
    """The log-probabilities of a chunk of token 1, by default without text."""
    helpers = importlib.import_module("rapid_mlx.service.helpers")
    output = importlib.import_module("rapid_mlx.engine.base").GenerationOutput
    chunk = output(**{"text": "", "new_text": "", "tokens": [1], "finished": False, **changed})
    chunk.logprobs = row
    entries = helpers._extract_streaming_token_logprobs(chunk, _TOKENIZER, 1)
    return [entry.logprob for entry in entries]


def process(kind: Any) -> Any:
    """A lazy row of log-probabilities, after the scheduler processed it in a thread of its own."""
    scheduler, rows = kind.__new__(kind), list[Any]()
    scheduler.uid_to_request_id = {}

    def run() -> None:
        with mx.stream(mx.new_stream(mx.cpu)):
            rows.append(mx.array([_CHANCES]).squeeze(0))
        scheduler._process_batch_responses([SimpleNamespace(uid=1, logprobs=rows[0])])

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return rows[0]
