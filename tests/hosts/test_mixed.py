"""A server's answers to many clients, some hostile, equal its answers to single requests.

Six rounds of 200 mixed requests, eight at a time: completions, streams, logits processors, images,
clients that leave, empty, repeated and continued prompts, and one in ten that is hostile. The
patched server has the profiles `safe` and `security`.
Runs in the environment of a release set, whose name is in MLX_PATCHES_HOST_SET: `make hosts`.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from . import server
from .server import (
    AT_A_TIME,
    FAILED,
    PROCESSORS,
    SHAPES,
    Host,
    Prompt,
    behind,
    image,
    resident,
    serving,
)
from .test_hosts import CASES, ROOT, SET

pytestmark = pytest.mark.slow

# How many requests of each kind are in a round. A host without images has plain ones instead.
SHARES = {
    "plain": 32,
    "stream": 36,
    "processors": 36,
    "image": 20,
    "repeated": 20,
    "continued": 20,
    "leaving": 10,
    "empty": 6,
    "malformed": 20,
}
ROUNDS = 6
# A server fills its caches of images and prefixes in the first rounds.
WARM = 2
# The longest answer.
TOKENS = 12
# The share by which a server's memory may grow from the first half of the warm rounds to the
# second. The lowest reading of each half counts: the allocator frees pages late, so single readings
# are up to 18 % higher.
GROWTH = 0.05
# Hostile requests: a whole body, or the wrong fields of a valid request.
# PROMPT stands for the field that holds the prompt; a GONE field is removed.
PROMPT, GONE = "PROMPT", object()
# The client closes the connection in the middle of the body.
CUT_OFF = "cut off"


def image_message(url: str) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": behind(url, "what is it?")}]}


MALFORMED: dict[str, bytes | dict[str, object]] = {
    "no JSON": b"{no",
    "not UTF-8": b"\xff\xfe{}",
    "a list": b"[1]",
    "nothing": b"",
    "no prompt": {PROMPT: GONE},
    "prompt: number": {PROMPT: 5},
    "prompt: null": {PROMPT: None},
    "max_tokens: word": {"max_tokens": "many"},
    "max_tokens: negative": {"max_tokens": -1},
    "temperature: word": {"temperature": "hot"},
    "stream: word": {"stream": "maybe"},
    "repetition_penalty: word": {"repetition_penalty": "high"},
    "stop: numbers": {"stop": [5]},
    "logit_bias: words": {"logit_bias": {"a": "b"}},
    "logit_bias: null": {"logit_bias": {"5": None}},
    "logit_bias: no such token": {"logit_bias": {"999999999": 1}},
    "prompt: half a character": {PROMPT: "\ud800"},
    "messages: number": {"messages": [5]},
    "messages: text": {"messages": "abc"},
    "messages: null": {"messages": [None]},
    "messages: half a character": {"messages": [{"role": "user", "content": "\ud800"}]},
    "messages: no image": image_message("data:image/png;base64,AAAA"),
    "messages: own network": image_message("http://127.0.0.1:1/image.png"),
    "messages: a file": image_message("/etc/passwd"),
    "deep": b'{"model": ' + b"[" * 3000,
    "max_tokens: huge": {"max_tokens": 1e308},
    "model: a folder": {"model": "/etc"},
    "model: number": {"model": 5},
    "stop: long": {"stop": "x" * 3000},
    "chat_template: top level": {"chat_template": "fox"},
    "messages: chat_template": {"chat_template_kwargs": {"chat_template": "fox"}},
    "response_format: own network": {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "x", "schema": {"$ref": "http://127.0.0.1:1/x"}},
        }
    },
    CUT_OFF: {},
}
# With the patches, every server answers these with an HTTP error, except where a field is ignored.
HARMLESS = {"logit_bias: no such token"}
# Answered, or refused if the host has a limit.
LIMITED = {"stop: long"}
# Hosts that answer an empty prompt; the others refuse it.
EMPTY_ANSWERED = {"mlx-lm 0.31.3", "mlx-lm 0.32.2"}
# The text of an unstreamed answer that ends with its first token, even without the patches.
# Its stream is empty.
WRITTEN_END = {"vllm-mlx 0.6.0": "<eos>"}
# The fields of PROCESSORS that a host knows, and its families, by their place in cases.toml.
HOSTS = {
    "vllm-mlx 0.6.0": ["repetition_penalty"],
    "mlx-lm 0.31.3": ["repetition_penalty", "logit_bias"],
    "mlx-lm 0.32.2": ["repetition_penalty", "logit_bias"],
    "mlx-vlm 0.7.10": ["repetition_penalty", "logit_bias"],
}
# A prefix cache grows up to its limit, by default a fifth of the machine's memory. With this limit,
# in MB, it is full within the first round.
MORE = {"vllm-mlx 0.6.0": " --cache-memory-mb 4"}
# Seconds until the server has dropped the requests of clients that left.
SETTLED = 2
# The stable result without the patches: generation stops for good, or the process crashes, because
# MLX does not check the token of a logit_bias.
HANGING = {"mlx-lm 0.31.3", "mlx-lm 0.32.2"}
CRASHING = {"mlx-vlm 0.7.10"}
# After this many timeouts in a row a server counts as hung.
HANGS = 2 * AT_A_TIME

if SET not in HOSTS:
    pytest.skip("this host is tried without mixed requests", allow_module_level=True)
CASE = CASES[SET][0] | {"processors": HOSTS[SET]}
CASE["command"] += MORE.get(SET, "")
PACKAGE = CASE.get("package", "mlx-lm")


@dataclass(frozen=True)
class Request:
    kind: str
    prompt: Prompt = ""
    fields: Mapping[str, object] = field(default_factory=dict)
    stream: bool = False
    # The text after the answer in a prompt that continues this one.
    then: str = ""
    # A key of MALFORMED.
    name: str = ""

    @property
    def key(self) -> str:
        return json.dumps([self.prompt, dict(self.fields)])

    @property
    def valid(self) -> bool:
        is_answered = self.kind not in ("leaving", "malformed")
        return is_answered and (self.kind != "empty" or SET in EMPTY_ANSWERED)


class Round:
    """The requests of one round, drawn with a seed."""

    def __init__(self, seed: int):
        self.draw = random.Random(seed)
        # The common beginning of prompts: prefix caches ignore short ones.
        self.common = " ".join(server.prompts(4, seed=seed))
        self.malformed = self.draw.sample(sorted(MALFORMED), len(MALFORMED))
        self.requests: list[Request] = []
        kinds = [kind for kind, count in SHARES.items() for _ in range(count)]
        self.draw.shuffle(kinds)
        for kind in kinds:
            self.requests.append(getattr(self, f"_make_{kind}")())

    def _make_plain(self) -> Request:
        return Request("plain", self._text(), self._length())

    def _make_stream(self) -> Request:
        # Hosts ignore unknown fields.
        unknown: dict[str, object] = {"no_such_field": [1]} if self._half() else {}
        return Request("stream", self._text(), self._length() | unknown, stream=True)

    def _make_processors(self) -> Request:
        fields = self._length() | self._processor()
        return Request("processors", self._text(), fields, self._half())

    def _make_image(self) -> Request:
        if PACKAGE != "mlx-vlm":
            return self._make_plain()
        seen = image(*self.draw.choice([*SHAPES, (56, 56), (28, 56)]))
        return Request("image", behind(seen, self._text()), self._length(), self._half())

    def _make_repeated(self) -> Request:
        one = self._earlier("plain", "stream", "processors", "image")
        other = self._processor() if self._half() else {}
        return Request("repeated", one.prompt, {**one.fields, **other}, self._half())

    def _make_continued(self) -> Request:
        one = self._earlier("plain", "stream", "processors")
        return dataclasses.replace(one, kind="continued", then=self._text())

    def _make_leaving(self) -> Request:
        return Request("leaving", self._text(), {"max_tokens": 200}, stream=True)

    def _make_empty(self) -> Request:
        return Request("empty", "", self._length())

    def _make_malformed(self) -> Request:
        return Request("malformed", name=self.malformed[len(self.requests) % len(MALFORMED)])

    def _earlier(self, *kinds: str) -> Request:
        earlier = [one for one in self.requests if one.kind in kinds]
        return self.draw.choice(earlier or [self._make_plain()])

    def _text(self) -> str:
        (words,) = server.prompts(1, seed=self.draw.randrange(1 << 30))
        return f"{self.common} {words}" if self._half() else words

    def _length(self) -> dict[str, object]:
        return {"max_tokens": self.draw.randint(4, TOKENS)}

    def _processor(self) -> dict[str, object]:
        name = self.draw.choice(CASE["processors"])
        return {name: PROCESSORS[name]}

    def _half(self) -> bool:
        return self.draw.random() < 0.5


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    command = [sys.executable, "-m", "tests.hosts.model", str(folder), CASE["family"], PACKAGE]
    subprocess.run(command, cwd=ROOT, check=True)
    return folder


@pytest.fixture(scope="module")
def rounds(model, tmp_path_factory):
    """The requests of each round, and what is right by a request's key."""
    sent = [one for seed in range(ROUNDS) for one in Round(seed).requests]
    first = exact(model, [one for one in sent if one.valid])
    sent = [continuing(one, first) if one.then else one for one in sent]
    answers = first | exact(model, [one for one in sent if one.kind == "continued"])
    images = {one.key: one for one in sent if isinstance(one.prompt, list)}
    if images:
        # The release answers these correctly, one at a time.
        with serving(CASE, model, tmp_path_factory.mktemp("images") / "log", False) as host:
            answers |= {key: host.answer(one.prompt, **one.fields) for key, one in images.items()}
    assert not [text for text in answers.values() if text.startswith(FAILED)]
    assert len(set(answers.values())) > len(answers) // 2, "the answers are too much alike"
    size = len(sent) // ROUNDS
    return [sent[i : i + size] for i in range(0, len(sent), size)], answers


def exact(model: Path, requests: Sequence[Request]) -> dict[str, str]:
    """The model's answers to text requests, computed without the host."""
    keys = sorted({one.key for one in requests if isinstance(one.prompt, str)})
    done = subprocess.run(
        [sys.executable, "-m", "tests.hosts.exact", str(model), PACKAGE],
        cwd=ROOT,
        env=os.environ | {"MLX_PATCHES": "0"},
        input=json.dumps([json.loads(key) for key in keys]),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return dict(zip(keys, json.loads(done.stdout), strict=True))


def continuing(one: Request, answers: Mapping[str, str]) -> Request:
    """A request whose prompt is an earlier prompt, its answer and more."""
    # In a prompt, a marker would stand for an image or a video.
    reply = answers[one.key].partition("<|")[0]
    return dataclasses.replace(one, prompt=f"{one.prompt}{reply} {one.then}")


@dataclass
class Tally:
    """The outcomes of the requests, and the state of the server."""

    right: int = 0
    wrong: int = 0
    failed: int = 0
    # Requests with their wrong answers.
    odd: list[tuple[Request, str]] = field(default_factory=list)
    # Malformed requests, by how they ended.
    ends: dict[str, set[str]] = field(default_factory=dict)
    # Answers to empty prompts if they are invalid there.
    empty: set[str] = field(default_factory=set)
    alive: str = ""
    # Bytes after each round.
    memory: list[int | None] = field(default_factory=list)

    def add(self, one: Request, text: str, right: str) -> None:
        if one.kind == "malformed":
            self.ends.setdefault(one.name, set()).add(text)
        elif one.kind == "empty" and not one.valid:
            self.empty.add(text)
        elif one.valid:
            name = "right" if text == right else "failed" if text.startswith(FAILED) else "wrong"
            setattr(self, name, getattr(self, name) + 1)
            if name != "right":
                self.odd.append((one, text))

    def row(self, name: str) -> str:
        valid = self.right + self.wrong + self.failed
        memory = " to ".join(f"{size / 1e6:.0f}" if size else "?" for size in self.memory)
        counts = (self.right, self.wrong, self.failed, valid, self.alive, memory)
        return " | ".join(["", SET, CASE["family"], name, *map(str, counts), ""]).strip()


HEAD = "| host | model | patches | right | wrong | failed | of | alive | memory in MB |"


def load(model: Path, log: Path, rounds: Any, patched: bool) -> Tally:
    """Send a server all requests, about eight at a time."""
    requests, answers = rounds
    tally = Tally()
    with serving(CASE, model, log, patched) as host:
        clients = Clients(host)
        for one_round in requests:
            with ThreadPoolExecutor(AT_A_TIME) as pool:
                replies = list(pool.map(clients.ask, one_round))
            for one, answer in zip(one_round, replies, strict=True):
                tally.add(one, answer, answers.get(one.key, ""))
            time.sleep(SETTLED)
            tally.memory.append(resident(host.process.group))
        tally.alive = alive(host, requests[0], answers)
    return tally


@dataclass
class Clients:
    host: Host
    # Valid requests in a row that timed out.
    waiting: int = 0

    def ask(self, one: Request) -> str:
        """Send a request, unless the server hangs; returns its answer or its end."""
        if self.waiting > HANGS:
            return f"{FAILED} not asked: the server hangs"
        answer = send(self.host, one)
        if one.valid:
            self.waiting = self.waiting + 1 if f"{FAILED} ReadTimeout" in answer else 0
        return answer


def send(host: Host, one: Request) -> str:
    """Send a request; returns its answer or its end."""
    if one.kind == "malformed":
        if one.name.startswith("messages"):
            host = dataclasses.replace(host, chat=True)
        if one.name == CUT_OFF:
            return host.cut_off(build_malformed(host, one.name))
        return host.status(build_malformed(host, one.name))
    if one.kind == "leaving":
        host.leave(one.prompt, **one.fields)
        return ""
    answer = host.answer(one.prompt, stream=one.stream, **one.fields)
    return "" if not one.stream and answer == WRITTEN_END.get(SET) else answer


def build_malformed(host: Host, name: str) -> bytes:
    change = MALFORMED[name]
    if isinstance(change, bytes):
        return change
    prompt = "messages" if host.chat else "prompt"
    change = {prompt if key == PROMPT else key: value for key, value in change.items()}
    fields = host.body("the quick fox") | change
    return json.dumps({k: v for k, v in fields.items() if v is not GONE}).encode()


def alive(host: Host, requests: Sequence[Request], answers: Mapping[str, str]) -> str:
    if not host.process.alive:
        return "no"
    one = next(one for one in requests if one.kind == "plain")
    return "yes" if send(host, one) == answers[one.key] else "hangs"


def expect_end(name: str) -> str:
    """The first characters with which the end of a hostile request may begin."""
    if name in LIMITED:
        return "24"
    if name == CUT_OFF:
        return "c"
    return "2" if name in HARMLESS else "45"


def test_released_answers(model, rounds, tmp_path, capsys, monkeypatch):
    # Right answers take a second or two here; vllm-mlx has no time limit.
    monkeypatch.setattr(server, "ANSWER_SECONDS", 8)
    tally = load(model, tmp_path / "log", rounds, patched=False)
    with capsys.disabled():
        print(f"\n{HEAD}\n{tally.row('without')}")
    # One of the malformed requests, an empty prompt, or requests with and without processors that
    # meet: something of that has always ended generation.
    assert (tally.alive == "hangs") == (SET in HANGING)
    assert (tally.alive == "no") == (SET in CRASHING)


def test_patched_answers(model, rounds, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("MLX_PATCHES_PROFILE", "safe,security")
    log = tmp_path / "log"
    tally = load(model, log, rounds, patched=True)
    with capsys.disabled():
        print(f"\n{HEAD}\n{tally.row('with')}")
        print(Counter((one.kind, reply[:200]) for one, reply in tally.odd), tally.ends, tally.empty)
    assert not tally.odd
    assert tally.alive == "yes"
    assert "was withdrawn" not in log.read_text(errors="replace")
    unlike = {
        name: ends
        for name, ends in tally.ends.items()
        if not all(end[0] in expect_end(name) for end in ends)
    }
    assert not unlike
    assert all("40" in reply for reply in tally.empty)
    if None not in tally.memory:
        warm = tally.memory[WARM:]
        early, late = min(warm[: len(warm) // 2]), min(warm[len(warm) // 2 :])
        assert late < (1 + GROWTH) * early, tally.memory
