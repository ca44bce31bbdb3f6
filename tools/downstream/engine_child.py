"""Sends requests to mlx-engine's batch engine in several ways; see engine.py.

    python engine_child.py MODEL [images]

With `images` every second request has one.

The last line that it prints is a JSON object: a way to pairs of an answer and the right one. An
answer is a list of tokens, or the text of an error.
"""

from __future__ import annotations

import inspect
import json
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count, takewhile
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

from tests.hosts.model import START
from tests.hosts.server import SHAPES, image, prompts

COUNT = 6
TOKENS = 16
# The tokens of a prefill step. The engine keeps prefixes of 256 tokens on disk.
CHUNK = 64
PREFIX = 90
MARKS = "<|vision_start|><|image_pad|><|vision_end|>"
PENALTY = {"repetition_penalty": 1.8}
# A request joins when each earlier one has generated this many tokens.
APART = 3
SECONDS = 120
numbers = count()
# A prompt's tokens, and the other fields of the request.
Request = tuple[list[int], dict[str, Any]]
Answer = list[int] | str


def main() -> None:
    # The engine and outlines import torch; only its seed is called. transformers must not find it.
    import transformers  # noqa: F401

    sys.modules["torch"] = MagicMock(Tensor=type("Tensor", (), {}))
    print(json.dumps(run_every_way(Path(sys.argv[1]), "images" in sys.argv[2:])))


def run_every_way(folder: Path, images: bool = False) -> dict[str, list[tuple[Answer, Answer]]]:
    """Each way, with the answers and the right ones."""
    with engine(folder) as kit:
        plain = requests(kit, images)
    solo = rights(folder, plain)
    penalized = [
        (tokens, fields | (PENALTY if number % 2 else {}))
        for number, (tokens, fields) in enumerate(plain)
    ]
    longer = [
        (tokens + text_of(answer) + tokens[-number - 1 :], fields)
        for number, ((tokens, fields), answer) in enumerate(zip(plain, solo, strict=True))
    ]
    others, after = rights(folder, penalized), rights(folder, longer)
    with engine(folder) as kit:
        ways = {
            "together": (together(kit, plain), solo),
            "repeated": ([run_request(kit, one) for one in plain], solo),
            "joining": (together(kit, plain, APART), solo),
            "beside cancelled": (beside_cancelled(kit, plain), solo[1::2]),
            "continued": ([run_request(kit, one) for one in longer], after),
            "continued together": (together(kit, longer), after),
            "with processors": (together(kit, penalized), others),
            "with processors, joining": (together(kit, penalized, APART), others),
        }
    return {way: list(zip(*pair, strict=True)) for way, pair in ways.items()}


@contextmanager
def engine(folder: Path) -> Iterator[Any]:
    """The engine's new batched kit for a model."""
    from mlx_engine import load_model, unload

    known = inspect.signature(load_model).parameters
    # It fits the context to the memory that Metal reports.
    more = {"auto_fit_context": False} if "auto_fit_context" in known else {}
    kit = load_model(folder, max_seq_nums=COUNT, max_kv_size=None, prefill_step_size=CHUNK, **more)
    try:
        if not type(kit).__name__.startswith("Batched"):
            sys.exit(f"the engine loads it for one request at a time: {type(kit).__name__}")
        yield kit
    finally:
        unload(kit)


def requests(kit: Any, images: bool) -> list[Request]:
    """Prompts of mixed lengths, half of which begin alike."""
    from mlx_engine import tokenize

    texts = [*prompts(COUNT // 2, prefix=PREFIX), *prompts(COUNT // 2, seed=1)]
    found = []
    for number, text in enumerate(texts):
        shown = images and bool(number % 2)
        url = image(*SHAPES[number % len(SHAPES)])
        fields = {"images_b64": [url.partition(",")[2]]} if shown else {}
        found.append((tokenize(kit, MARKS + text if shown else text), fields))
    return found


def rights(folder: Path, sent: Sequence[Request]) -> list[list[int]]:
    """The answer of a new engine to each request."""
    found = []
    for number, one in enumerate(sent):
        with engine(folder) as kit:
            answer = run_request(kit, one)
        if isinstance(answer, str):
            sys.exit(f"solo request {number}: {answer}")
        found.append(answer)
    return found


def text_of(answer: Sequence[int]) -> list[int]:
    """An answer up to the first token that stands for an image."""
    return list(takewhile(lambda token: token < START, answer))


def run_request(
    kit: Any, request: Request, report: Callable[[str, int], None] | None = None
) -> Answer:
    """The tokens of the answer; ``report`` gets the request's id and their number so far."""
    from mlx_engine import create_generator

    tokens, fields = request
    name, answer = f"request {next(numbers)}", []
    options = {"temp": 0.0, "max_tokens": TOKENS, "request_id": name, **fields}
    try:
        for chunk in create_generator(kit, list(tokens), **options):
            answer += [token.id for token in chunk.tokens]
            if report is not None:
                report(name, len(answer))
    except Exception as error:
        return f"{type(error).__name__}: {str(error).strip().splitlines()[-1][:150]}"
    return answer


def together(
    kit: Any, sent: Sequence[Request], apart: int = 0, cancelled: Sequence[int] = ()
) -> list[Answer]:
    """The answers to concurrent requests, or each started ``apart`` tokens after the last.

    Those of ``cancelled`` are cancelled, each after as many tokens as its number.
    """
    from mlx_engine import stop_generation

    found: list[Answer] = ["no answer"] * len(sent)
    lengths, changed = [0] * len(sent), threading.Condition()

    def one(number: int) -> None:
        def report(name: str, length: int) -> None:
            with changed:
                lengths[number] = length
                changed.notify_all()
            if number in cancelled and length >= number:
                stop_generation(kit, name)

        with changed:
            reached = changed.wait_for(lambda: sum(lengths) >= apart * number, SECONDS)
        found[number] = run_request(kit, sent[number], report) if reached else "never joined"

    threads = [threading.Thread(target=one, args=(n,), daemon=True) for n in range(len(sent))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    return found


def beside_cancelled(kit: Any, sent: Sequence[Request]) -> list[Answer]:
    """The answers to every second request, while the others are cancelled."""
    return together(kit, sent, cancelled=range(0, len(sent), 2))[1::2]


if __name__ == "__main__":
    main()
