"""A host server in a process of its own, and what it answers."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx

START_SECONDS = 150
ANSWER_SECONDS = 60
TOKENS = 24
AT_A_TIME = 8
_WORDS = ("the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "and", "12", "more")


@contextlib.contextmanager
def serving(command: str, model: Path, log: Path, patched: bool) -> Iterator[Host]:
    """Run a host's command, with the patches or without, until the block ends."""
    port = free_port()
    words = shlex.split(command.format(model=model, port=port))
    here = Path(sys.executable).parent
    words[0] = str(here / words[0])
    if patched:
        words = [str(here / "mlx-patches"), "run", "--", *words]
    environment = {**os.environ, "MLX_PATCHES": "1" if patched else "0", "HF_HUB_OFFLINE": "1"}
    with log.open("w") as out:
        process = subprocess.Popen(words, stdout=out, stderr=out, env=environment)
        try:
            yield ready(process, port, str(model), log)
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def ready(process: subprocess.Popen[bytes], port: int, model: str, log: Path) -> Host:
    """The host, when it answers."""
    host = Host(f"http://127.0.0.1:{port}", model)
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"{host.url}/v1/models", timeout=5).status_code == 200:
                return host
        time.sleep(0.5)
    raise RuntimeError(f"the host does not start: {log.read_text()[-2000:]}")


@dataclass(frozen=True)
class Host:
    """A running server."""

    url: str
    model: str

    def answer(self, prompt: str, stream: bool = False) -> str:
        """The greedy completion of a prompt; what went wrong where there is none."""
        try:
            if stream:
                return "".join(self._pieces(prompt)).strip()
            body = self._body(prompt)
            said = httpx.post(f"{self.url}/v1/completions", json=body, timeout=ANSWER_SECONDS)
            said.raise_for_status()
            return str(said.json()["choices"][0]["text"]).strip()
        except (httpx.HTTPError, KeyError, ValueError) as error:
            return f"<{type(error).__name__}: {error}>"

    def _body(self, prompt: str, **more: object) -> dict[str, object]:
        asked = {"model": self.model, "prompt": prompt, "max_tokens": TOKENS, "temperature": 0}
        return asked | more

    def _pieces(self, prompt: str) -> Iterator[str]:
        body = self._body(prompt, stream=True)
        url = f"{self.url}/v1/completions"
        with httpx.stream("POST", url, json=body, timeout=ANSWER_SECONDS) as said:
            said.raise_for_status()
            for line in said.iter_lines():
                data = line.removeprefix("data: ")
                if line.startswith("data: ") and data != "[DONE]":
                    yield json.loads(data)["choices"][0].get("text") or ""

    def leave(self, prompt: str) -> None:
        """Ask, and hang up after the first piece."""
        with contextlib.suppress(httpx.HTTPError, StopIteration):
            next(self._pieces(prompt))

    def one_by_one(self, prompts: Sequence[str]) -> list[str]:
        """The answers to requests that come one at a time."""
        return [self.answer(prompt) for prompt in prompts]

    def together(self, prompts: Sequence[str], streams: bool = True) -> list[str]:
        """The answers to requests that overlap, every other one streamed, and one that leaves."""

        def ask(index: int) -> str:
            time.sleep(0.02 * (index % AT_A_TIME))
            return self.answer(prompts[index], stream=streams and bool(index % 2))

        with ThreadPoolExecutor(AT_A_TIME + 1) as pool:
            left = pool.submit(self.leave, prompts[0][::-1])
            answers = list(pool.map(ask, range(len(prompts))))
            left.result()
            return answers


def prompts(count: int, seed: int = 0, prefix: int = 0) -> list[str]:
    """Prompts of mixed lengths, behind a common prefix of so many words."""
    draw = random.Random(seed)
    common = [draw.choice(_WORDS) for _ in range(prefix)]
    return [
        " ".join([*common, *(draw.choice(_WORDS) for _ in range(draw.randint(1, 14)))])
        for _ in range(count)
    ]
