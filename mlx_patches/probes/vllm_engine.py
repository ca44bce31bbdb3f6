"""vllm-mlx's own engines, whose requests are answered with known pieces of text."""

import asyncio
import contextlib
import importlib
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

from . import NotApplicable
from .stop_text import PIECES


async def collect(engine: Any, **sent: Any) -> Any:
    """The output of an answer that is not streamed."""
    output = await engine.generate("hi", **sent)
    await asyncio.sleep(0.01)  # the event loop closes what an engine leaves open
    return output


async def stream(engine: Any, **sent: Any) -> list[Any]:
    """The outputs of an answer that is streamed."""
    outputs = [one async for one in engine.stream_generate("hi", **sent)]
    await asyncio.sleep(0.01)
    return outputs


def make_engine(kind: Any) -> Any:
    """An engine of the release.

    ``sent`` are the arguments of its requests, ``closed`` the lengths of answers that it closed,
    ``step`` is called with a request's processors before each output.
    """
    if kind.__name__ == "SimpleEngine" and not hasattr(kind, "_stream_generate_impl"):
        raise NotApplicable("this release's simple engine has no _stream_generate_impl")
    engine = kind.__new__(kind)
    engine.sent, engine.closed = [], []
    engine.step = lambda processors: None
    engine._loaded, engine._is_mllm, engine._draft_model = True, False, None
    engine._active_requests, engine._num_running = {}, 0
    engine._recent_completions = []
    engine._total_requests_processed = engine._total_prompt_tokens = 0
    engine._total_completion_tokens = 0
    engine._mllm_scheduler = None
    engine._ensure_generation_admission = lambda: ("probe", False)  # Rapid-MLX
    engine._engine = SimpleNamespace(
        add_request=lambda **sent: take(engine, vars(sent["sampling_params"])),
        stream_outputs=lambda _: answer(engine),
        generate=lambda **sent: generate(engine, vars(sent["sampling_params"])),
    )
    engine._stream_generate_impl = lambda **sent: engine.sent.append(sent) or answer(engine)
    return engine


@contextlib.contextmanager
def open_simple_engine() -> Iterator[Any]:
    """A simple engine whose thread does not bind the streams of mlx-lm and mlx-vlm to itself.

    The next probe of this process generates with them in another thread.
    """
    simple: Any = importlib.import_module("vllm_mlx.engine.simple")
    if not hasattr(simple.SimpleEngine, "_run_blocking_serialized"):
        raise NotApplicable("this release's simple engine cannot cancel a request")
    with mock.patch.object(simple, "_bind_worker_generation_streams", create=True):
        yield simple.SimpleEngine("model")


def require_processors(engine: Any) -> None:
    """Check that an engine passes a request's logits processors on."""
    asyncio.run(stream(engine, logits_processors=[lambda tokens, logits: logits]))
    if not engine.sent[-1].get("logits_processors"):
        raise NotApplicable("this release's engine takes no logits processors")


async def take(engine: Any, sent: dict[str, Any]) -> str:
    """Take a request; returns its id."""
    engine.sent.append(sent)
    return "probe"


async def generate(engine: Any, sent: dict[str, Any]) -> Any:
    """The last output of an answer."""
    await take(engine, sent)
    return [one async for one in answer(engine)][-1]


async def answer(engine: Any) -> AsyncIterator[Any]:
    """The outputs of an answer; records if they are closed before its end."""
    text = ""
    try:
        for number, piece in enumerate(PIECES, 1):
            engine.step(engine.sent[-1].get("logits_processors") or ())
            text += piece
            output = make_output(text, piece, number)
            if stop := find_stop(engine, text):
                output.output_text, output.new_text = text[: text.index(stop)], ""
                output.finished, output.finish_reason = True, "stop"
                output.matched_stop = stop
                engine.closed.append(number)
                yield output
                return
            yield output
    except GeneratorExit:
        engine.closed.append(number)
        raise


def find_stop(engine: Any, text: str) -> str:
    """The stop string at which Rapid-MLX's scheduler ends the answer; empty if none."""
    if not type(engine).__module__.startswith("rapid_mlx"):
        return ""
    return next((one for one in engine.sent[-1].get("stop") or () if one in text), "")


def make_output(text: str, piece: str, number: int) -> Any:
    last = number == len(PIECES)
    output: Any = importlib.import_module("vllm_mlx.engine.base").GenerationOutput(
        text=text,
        new_text=piece,
        completion_tokens=number,
        finished=last,
        finish_reason="length" if last else None,
    )
    output.output_text, output.output_token_ids, output.new_token_ids = text, [], []
    output.mtp_drafts = output.mtp_accepted = 0
    return output
