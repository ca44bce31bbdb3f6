"""Feeds vllm-mlx's engines an answer with the stop string of a request."""

import asyncio

from ....probes.kit import Result, Target, own_class_of
from ....probes.stop_text import STOP, check_stop
from ....probes.vllm_engine import collect, make_engine, stream


def probe(target: Target) -> Result:
    """Red if an answer goes on after the stop string, or lacks text before it."""
    engine = make_engine(own_class_of(target))
    streamed = asyncio.run(stream(engine, stop=[STOP]))
    fault = check_stop((one.new_text for one in streamed), engine.closed)
    if fault.red:
        return fault
    whole = asyncio.run(collect(engine, stop=[STOP]))
    # The engine strips a whole answer.
    return check_stop([f"{whole.text.strip()} "], whole.finish_reason == "stop")
