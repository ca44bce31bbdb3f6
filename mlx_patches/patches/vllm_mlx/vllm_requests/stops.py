"""vllm-mlx ignores the stop strings of a request, or ends the answer after them.

Why: The batched engines, for text and for images, get the stop strings and never read them. The
    simple engine ignores them in answers that are not streamed; in the others it keeps the stop
    string and the rest of its token. ``/v1/messages`` drops ``stop_sequences``. Rapid-MLX streams
    the beginning of a stop string that spans tokens.
How: The outputs of an engine are searched as they are generated. At the first stop string the
    answer ends, with the text before it and ``finish_reason: stop``, and the request is aborted.
    Text that may begin a stop string is held back until that is certain. An answer that is not
    streamed is collected from the same outputs. Requests without stop strings run the release's
    code.
Upstream: Not fixed in vllm-mlx 0.6.0 and Rapid-MLX 0.16.10.
Retire when: Both engines stop at the stop strings of a request.
"""

import importlib
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from ....core.verbs import Function, Patch, result, wrap
from ..._shared.request_fields import FIELDS
from ..._shared.stop_strings import Cut, read_stops
from .outputs import BATCHED, SIMPLE, take_last


@dataclass(frozen=True)
class Part:
    """The text of an engine's output that may be cut."""

    text: str
    finish_reason: str | None
    output: Any


def end_at_stops(outputs: Any, stop: Any) -> Any:
    """The outputs of an engine, up to the first stop string."""
    stops = find_stops(stop)
    return cut_outputs(outputs, stops) if stops else outputs


def find_stops(stop: Any) -> list[str]:
    """The stop strings of a request; those of ``/v1/messages`` are in its body."""
    return read_stops(stop or FIELDS.get({}).get("stop_sequences"))


async def cut_outputs(outputs: Any, stops: Sequence[str]) -> AsyncIterator[Any]:
    """Yield outputs up to the first stop string; closing them aborts the request."""
    cut, texts = Cut(stops), list[str]()
    async with aclosing(outputs):
        async for output in outputs:
            reason = output.finish_reason if output.finished else None
            parts = cut.push(Part(output.new_text, reason, output))
            texts += [part.text for part in parts]
            for part in parts[:-1] if cut.ended else parts:
                yield part.output
            if cut.ended:
                break
    if cut.ended:
        end = {"text": clean_text("".join(texts)), "new_text": texts[-1]}
        yield replace(parts[-1].output, **end, finished=True, finish_reason="stop")
    for part in () if cut.ended else cut.held:
        yield part.output


def clean_text(text: str) -> str:
    """A whole answer, as the engine cleans it."""
    return str(importlib.import_module("vllm_mlx.api.utils").clean_output_text(text))


def hold_at_stops(outputs: Any, stop: Any) -> Any:
    """The outputs of Rapid-MLX's engine, without the beginning of the stop string that it finds."""
    stops = find_stops(stop)
    return hold_outputs(outputs, stops) if stops else outputs


async def hold_outputs(outputs: Any, stops: Sequence[str]) -> AsyncIterator[Any]:
    """Yield outputs, those that may begin a stop string as soon as that is certain."""
    cut, held = Cut(stops), deque[Any]()
    async with aclosing(outputs):
        async for output in outputs:
            held.append(output)
            if not output.finished:
                passed = cut.push(Part(output.new_text, None, output))
                if cut.ended:  # in the reasoning, where the engine looks for no stop string
                    cut, passed = Cut(stops), [*held]
                for _ in passed:
                    yield held.popleft()
    room = sum(len(output.new_text) for output in held)
    last = held[-1] if held else None
    if last and last.matched_stop and not ends_text(last):
        cut.push(Part(last.new_text, None, last))
        room -= cut.find_begun(last.matched_stop)
    for output in held:
        yield replace(output, new_text=output.new_text[:room])
        room = max(0, room - len(output.new_text))


def ends_text(output: Any) -> bool:
    """Whether the whole text ends with an output's; one merged with earlier ones may have more."""
    return bool(output.new_text) and output.text.rstrip().endswith(output.new_text.rstrip())


def has_stops(stop: Any) -> bool:
    return bool(find_stops(stop))


async def collect(released: Function, engine: Any, *args: Any, **sent: Any) -> Any:
    """The answer to a prompt that is not streamed."""
    return await take_last(engine.stream_generate(*args, **sent))


async def collect_chat(released: Function, engine: Any, *args: Any, **sent: Any) -> Any:
    """The answer to a conversation that is not streamed."""
    return await take_last(engine.stream_chat(*args, **sent))


PATCH = Patch(
    id="vllm-stop-text",
    probe=".probe_stops:probe",
    targets=(
        *result(
            (f"{BATCHED}.stream_generate", f"{SIMPLE}.stream_generate"),
            end_at_stops,
            when=has_stops,
        ),
        *result(
            "rapid_mlx.engine.batched:BatchedEngine.stream_generate", hold_at_stops, when=has_stops
        ),
        *result(f"{SIMPLE}.stream_chat", end_at_stops, when=has_stops, supports=True),
        *wrap(f"{BATCHED}.generate", collect, when=has_stops, supports=True),
        *wrap(f"{SIMPLE}.chat", collect_chat, when=has_stops, supports=True),
    ),
)
