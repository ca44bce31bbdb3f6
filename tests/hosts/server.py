"""Runs a host server in its own process, and sends it requests."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import random
import socket
import struct
import sys
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from mlx_patches.lab.server.process import Process, each_process, free_port, run

ANSWER_SECONDS = 60
# A host gets no more requests after this time.
LOAD_SECONDS = 900
TOKENS = 24
AT_A_TIME = 8
# The beginning of the text that stands for a missing answer; no model generates it.
FAILED = "\N{CROSS MARK}"
# Request fields that select logits processors. A penalty of this size changes most answers. A ban
# of every second token changes all answers, which still depend on the prompt.
PROCESSORS: dict[str, object] = {
    "repetition_penalty": 1.8,
    "logit_bias": {str(token): -100 for token in range(1, 96, 2)},
}
_WORDS = ("the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "and", "12", "more")


@contextlib.contextmanager
def serving(
    case: Mapping[str, Any],
    model: Path,
    log: Path,
    patched: bool | None,
    python: str = sys.executable,
) -> Iterator[Host]:
    """Run a host's command until the block ends.

    Args:
        case: an entry of cases.toml.
        model: the model's folder.
        log: the file for the host's output.
        patched: with the patches or without; None: as the environment is enabled.
        python: the interpreter of the environment that has the host.
    """
    port, config = free_port(), log.with_suffix(".yaml")
    config.write_text(case.get("config", "").format(model=model, port=port))
    names = {"model": model, "config": config, "bin": Path(python).parent}
    fields = {name: case[name] for name in ("chat", "streams", "processors") if name in case}
    with run(case["command"], names, patched, log, python, port) as process:
        yield Host(process.url, str(model), process, **fields)


def resident(group: int) -> int | None:
    """The resident memory of a process group, in bytes; None on a system without /proc."""
    pages = [int(fields[21]) for _, fields in each_process(group)]
    return sum(pages) * os.sysconf("SC_PAGE_SIZE") if pages else None


# A text, or the parts of a chat message with text and images.
Prompt = str | list[dict[str, Any]]


@dataclass(frozen=True)
class Host:
    """A running server, asked for completions, or with ``chat`` for chat completions.

    Every second answer is streamed, because hosts write the end of a turn differently in streams.
    The logits processors of requests alternate: none, then each of ``processors``.
    """

    url: str
    model: str
    process: Process
    chat: bool = False
    streams: bool = True
    processors: Sequence[str] = ()
    until: float = field(default_factory=lambda: time.monotonic() + LOAD_SECONDS)

    def answer(self, prompt: Prompt, stream: bool = False, **more: object) -> str:
        """The greedy completion of a prompt; without one, a text with the error."""
        if time.monotonic() > self.until:
            return f"{FAILED} not asked: {LOAD_SECONDS} s are over"
        try:
            if stream:
                return "".join(self._stream(prompt, **more)).strip()
            body = self.body(prompt, **more)
            response = httpx.post(self._endpoint(), json=body, timeout=ANSWER_SECONDS)
            response.raise_for_status()
            return text_of(response.json()).strip()
        except (httpx.HTTPError, LookupError, ValueError) as error:
            return f"{FAILED} {type(error).__name__}: {error}"

    def _endpoint(self) -> str:
        return f"{self.url}/v1/chat/completions" if self.chat else f"{self.url}/v1/completions"

    def body(self, prompt: Prompt, **more: object) -> dict[str, object]:
        messages = [{"role": "user", "content": prompt}]
        content = {"messages": messages} if self.chat else {"prompt": prompt}
        return {"model": self.model, "max_tokens": TOKENS, "temperature": 0, **content, **more}

    def _stream(self, prompt: Prompt, **more: object) -> Iterator[str]:
        body = self.body(prompt, stream=True, **more)
        with httpx.stream("POST", self._endpoint(), json=body, timeout=ANSWER_SECONDS) as response:
            response.raise_for_status()
            until = time.monotonic() + ANSWER_SECONDS
            for line in response.iter_lines():
                # Heartbeats do not count as an answer.
                if time.monotonic() > until:
                    raise httpx.ReadTimeout("the stream does not end")
                data = line.removeprefix("data: ")
                if line.startswith("data: ") and data != "[DONE]":
                    yield text_of(json.loads(data))

    def leave(self, prompt: Prompt, **more: object) -> None:
        """Send a request, and hang up after the first chunk of its answer."""
        with contextlib.suppress(httpx.HTTPError, StopIteration, LookupError, ValueError):
            next(self._stream(prompt, **more))

    def status(self, body: bytes) -> str:
        """Send a malformed request; returns the status of the answer, or "closed"."""
        headers = {"content-type": "application/json"}
        try:
            response = httpx.post(
                self._endpoint(), content=body, headers=headers, timeout=ANSWER_SECONDS
            )
            return str(response.status_code)
        except httpx.RemoteProtocolError:
            return "closed"
        except httpx.HTTPError as error:
            return f"{FAILED} {type(error).__name__}: {error}"

    def cut_off(self, body: bytes) -> str:
        """Send the head of a request and half of its body, and close the connection.

        Returns "closed", or why no connection was made.
        """
        url = httpx.URL(self._endpoint())
        head = f"POST {url.path} HTTP/1.1\r\nHost: {url.host}\r\ncontent-type: application/json\r\n"
        head += f"content-length: {len(body)}\r\n\r\n"
        try:
            with socket.create_connection((url.host, url.port), ANSWER_SECONDS) as connection:
                connection.sendall(head.encode() + body[: len(body) // 2])
        except OSError as error:
            return f"{FAILED} {type(error).__name__}: {error}"
        return "closed"

    def one_of(self, prompts: Sequence[Prompt], index: int) -> str:
        """The answer to one of several prompts; its index decides whether it is streamed."""
        stream = self.streams and bool(index % 2)
        return self.answer(prompts[index], stream=stream, **processors_of(self.processors, index))

    def answer_one_by_one(self, prompts: Sequence[Prompt]) -> list[str]:
        return [self.one_of(prompts, index) for index in range(len(prompts))]

    def answer_again(self, prompts: Sequence[Prompt]) -> list[str]:
        """The answers to the same requests, sent one at a time in the opposite order."""
        return [self.one_of(prompts, index) for index in reversed(range(len(prompts)))][::-1]

    def answer_solo(self, prompts: Sequence[Prompt]) -> list[str]:
        """The answers to requests sent one at a time, as the reference for all others.

        Raises:
            AssertionError: a request failed, or most answers are the same.
        """
        answers = self.answer_one_by_one(prompts)
        assert not [answer for answer in answers if answer.startswith(FAILED)], answers
        assert len(set(answers)) > len(prompts) // 4, answers
        return answers

    def answer_batch(self, prompts: Sequence[Prompt]) -> list[str]:
        """The answers to concurrent requests, while one more request's client hangs up."""

        def ask(index: int) -> str:
            time.sleep(0.02 * (index % AT_A_TIME))
            return self.one_of(prompts, index)

        with ThreadPoolExecutor(AT_A_TIME + 1) as pool:
            left = pool.submit(self.leave, prompts[0][::-1])
            answers = list(pool.map(ask, range(len(prompts))))
            left.result()
            return answers


def text_of(response: dict[str, Any]) -> str:
    """The text of an answer or a chunk; some hosts end a stream with an empty choice list."""
    text = ""
    for choice in response["choices"]:
        message = choice.get("message") or choice.get("delta") or choice
        text += message.get("text") or message.get("content") or ""
    return text


def processors_of(names: Sequence[str], index: int) -> dict[str, object]:
    """The fields of one of several requests, alternating: none, then each of these."""
    turn = index % (len(names) + 1)
    return {names[turn - 1]: PROCESSORS[names[turn - 1]]} if turn else {}


# Width and height in pixels. All have the same number of image tokens: 3 x 4 or 2 x 6 patches.
SHAPES = ((84, 112), (112, 84), (56, 168), (168, 56))


def with_images(prompts: Sequence[str]) -> list[Prompt]:
    """The prompts; two of three come after an image, of mixed sizes."""
    sizes = (0, 1, 2)
    return [
        behind(image(28 * size, 56), text) if (size := sizes[index % 3]) else behind(None, text)
        for index, text in enumerate(prompts)
    ]


def with_shapes(prompts: Sequence[str]) -> list[Prompt]:
    """Like ``with_images``; in the first half, each four share one text after different shapes."""
    count = len(SHAPES)
    alike = [
        behind(image(*SHAPES[index % count]), prompts[index - index % count])
        for index in range(len(prompts) // 2)
    ]
    return alike + with_images(prompts)[len(alike) :]


def behind(url: str | None, text: str) -> Prompt:
    """A prompt's parts: an image, if ``url`` is given, and the text."""
    seen = [{"type": "image_url", "image_url": {"url": url}}] if url else []
    return [*seen, {"type": "text", "text": text}]


def image(width: int, height: int) -> str:
    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    rows = (
        b"\0" + bytes(v for x in range(width) for v in (9 * x % 256, 7 * y % 256, x * y % 256))
        for y in range(height)
    )
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header)
    png += chunk(b"IDAT", zlib.compress(b"".join(rows))) + chunk(b"IEND", b"")
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def prompts(count: int, seed: int = 0, prefix: int = 0) -> list[str]:
    """Prompts of mixed lengths, after a common prefix of ``prefix`` words."""
    draw = random.Random(seed)
    common = [draw.choice(_WORDS) for _ in range(prefix)]
    return [
        " ".join([*common, *(draw.choice(_WORDS) for _ in range(draw.randint(1, 14)))])
        for _ in range(count)
    ]
