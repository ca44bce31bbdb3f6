"""Sends requests to a server's endpoints, and reads their answers into one form."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import socket
import threading
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from .oracle import TOKENS, Language
from .pictures import split

CHAT, COMPLETIONS, RESPONSES, MESSAGES = "chat", "completions", "responses", "messages"
PATHS = {
    CHAT: "/v1/chat/completions",
    COMPLETIONS: "/v1/completions",
    RESPONSES: "/v1/responses",
    MESSAGES: "/v1/messages",
}
EMBEDDINGS, RERANK = "embeddings", "rerank"
ENCODERS = {EMBEDDINGS: "/v1/embeddings", RERANK: "/v1/rerank"}
# The endpoints' names of fields that the matrix has under another name.
NAMES = {RESPONSES: {"max_tokens": "max_output_tokens"}, MESSAGES: {"stop": "stop_sequences"}}
ANSWER_SECONDS = 30.0
NO_ANSWER = "no answer within"
Message = dict[str, str]
# An event of a stream, or a whole answer.
Event = Mapping[str, Any]


@dataclass(frozen=True)
class Request:
    """What a request has, for every endpoint: the user's texts, and answers to the earlier ones."""

    texts: tuple[str, ...]
    fields: Mapping[str, Any] = field(default_factory=dict)
    tokens: int = 40

    def messages(self) -> list[Message]:
        """The conversation; texts alternate between the user and the assistant."""
        roles = ("user", "assistant")
        return [{"role": roles[n % 2], "content": text} for n, text in enumerate(self.texts)]

    def body(self, endpoint: str, model: str) -> dict[str, Any]:
        names = NAMES.get(endpoint, {})
        key = {COMPLETIONS: "prompt", RESPONSES: "input"}.get(endpoint, "messages")
        messages = [
            one | {"content": make_content(endpoint, one["content"])} for one in self.messages()
        ]
        text = "".join(self.texts) if endpoint == COMPLETIONS else messages
        fields = {"max_tokens": self.tokens, **self.fields}
        fields = {names.get(name, name): value for name, value in fields.items()}
        return {"model": model, key: text, **{k: v for k, v in fields.items() if v != ""}}

    def prompt(self, endpoint: str, language: Language) -> list[int]:
        if endpoint == COMPLETIONS:
            return language.encode("".join(self.texts))
        kwargs = self.fields.get("chat_template_kwargs", self.fields)
        return language.chat(self.messages(), kwargs.get("enable_thinking", True))


def make_content(endpoint: str, text: str) -> Any:
    """A message's content; with pictures, its parts as the endpoint names them."""
    urls, rest = split(text)
    kind = "input_text" if endpoint == RESPONSES else "text"
    parts = [_show_picture(endpoint, url) for url in urls]
    return [*parts, {"type": kind, "text": rest}] if parts else text


def _show_picture(endpoint: str, url: str) -> dict[str, Any]:
    if endpoint == RESPONSES:
        return {"type": "input_image", "image_url": url}
    if endpoint == MESSAGES:
        source = {"type": "base64", "media_type": "image/png", "data": url.partition(",")[2]}
        return {"type": "image", "source": source}
    return {"type": "image_url", "image_url": {"url": url}}


# A token of an answer, its log-probability, and the most likely tokens with theirs.
Chance = tuple[int, float, list[tuple[int, float]]]


@dataclass
class Answer:
    """A server's answer. ``status``: of HTTP, 0 if there was no answer; ``error``: its reason."""

    status: int = 0
    error: str = ""
    texts: list[str] = field(default_factory=list)
    finishes: list[str | None] = field(default_factory=list)
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    chances: list[Chance] | None = None
    prompt_tokens: int | None = None
    answer_tokens: int | None = None
    vectors: dict[int, list[float]] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def text(self) -> str:
        return self.texts[0] if self.texts else ""

    @property
    def finish(self) -> str | None:
        return self.finishes[0] if self.finishes else None

    @property
    def refused(self) -> bool:
        return 400 <= self.status < 500

    def tokens(self, language: Language) -> list[int]:
        """The text's tokens; servers strip the first space."""
        return language.encode(" " + self.text.strip()) if self.text.strip() else []


class Client:
    """A client of one server; each thread keeps one connection."""

    def __init__(self, url: str, model: str, seconds: float = ANSWER_SECONDS):
        parts = urlsplit(url)
        self.host, self.port = parts.hostname or "127.0.0.1", parts.port or 80
        self.base, self.secure = parts.path.rstrip("/"), parts.scheme == "https"
        self.model, self.seconds = model, seconds
        self._kept = threading.local()

    def _connect(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self.secure else http.client.HTTPConnection
        return kind(self.host, self.port, timeout=self.seconds)

    def send(
        self,
        endpoint: str,
        request: Request,
        stream: bool = False,
        begun: Callable[[], None] | None = None,
        model: str = "",
    ) -> Answer:
        """Send a request; ``begun`` is called at the first part of a streamed answer."""
        body = request.body(endpoint, model or self.model) | ({"stream": True} if stream else {})
        return self.post(endpoint, json.dumps(body).encode(), begun)

    def post(self, endpoint: str, body: bytes, begun: Callable[[], None] | None = None) -> Answer:
        """Send a body, and read the answer; send it again if the server is busy."""
        start = time.monotonic()
        while True:
            answer = self._post(endpoint, body, begun, start)
            answer.seconds = time.monotonic() - start
            if answer.status < 500 or "busy" not in answer.error or answer.seconds > self.seconds:
                return answer
            time.sleep(0.1)

    def _post(
        self, endpoint: str, body: bytes, begun: Callable[[], None] | None, start: float
    ) -> Answer:
        try:
            status, kind, lines = self._lines((PATHS | ENCODERS)[endpoint], body, start)
            if "event-stream" in kind:
                return read_events(endpoint, list(_events(lines, begun)))
            return read(endpoint, status, b"".join(lines))
        except (OSError, http.client.HTTPException) as error:
            self._drop()
            late = isinstance(error, TimeoutError)
            reason = f"{NO_ANSWER} {self.seconds:.0f} s"
            return Answer(0, reason if late else f"{type(error).__name__}: {error}")

    def _lines(self, path: str, body: bytes, start: float) -> tuple[int, str, Iterator[bytes]]:
        kept = getattr(self._kept, "connection", None)
        for connection in (kept, None) if kept else (None,):
            connection = connection or self._connect()
            self._kept.connection = connection
            try:
                headers = {"Content-Type": "application/json"}
                connection.request("POST", self.base + path, body, headers)
                response = connection.getresponse()
                break
            except (ConnectionError, http.client.RemoteDisconnected):
                # A kept connection may have been closed meanwhile; a new one must work.
                self._drop()
                if connection is not kept:
                    raise
        kind = response.headers.get("Content-Type", "")
        return response.status, kind, self._within(response, start)

    def _within(self, response: http.client.HTTPResponse, start: float) -> Iterator[bytes]:
        while line := response.readline():
            # Heartbeats are no answer.
            if time.monotonic() - start > self.seconds:
                raise TimeoutError
            yield line
        # A connection is kept only if its answer was read to the end.
        response.close()

    def _drop(self) -> None:
        if connection := getattr(self._kept, "connection", None):
            connection.close()
        self._kept.connection = None

    def get(self, path: str) -> Any:
        connection = self._connect()
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
            connection.request("GET", self.base + path)
            return json.loads(connection.getresponse().read())
        return None

    def leave(self, endpoint: str, request: Request, stream: bool, after: float = 0.15) -> None:
        """Send a request and hang up: after the first part of a stream, or after some seconds."""
        body = json.dumps(request.body(endpoint, self.model) | {"stream": stream}).encode()
        with contextlib.suppress(OSError), self._raw(PATHS[endpoint], body) as connection:
            if stream:
                connection.recv(4096)
                connection.recv(4096)
            else:
                time.sleep(after)
            # A reset, like that of a client that ends.
            linger = b"\1\0\0\0\0\0\0\0"
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)

    def cut(self, endpoint: str, request: Request) -> None:
        """Send half a body, and close the connection."""
        body = json.dumps(request.body(endpoint, self.model)).encode()
        with contextlib.suppress(OSError):
            self._raw(PATHS[endpoint], body, len(body) // 2).close()

    def _raw(self, path: str, body: bytes, count: int | None = None) -> socket.socket:
        connection = socket.create_connection((self.host, self.port), self.seconds)
        head = f"POST {self.base}{path} HTTP/1.1\r\nHost: {self.host}:{self.port}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body[:count])
        return connection


def _events(lines: Iterator[bytes], begun: Callable[[], None] | None) -> Iterator[dict[str, Any]]:
    for line in lines:
        data = line.decode(errors="replace").strip()
        if data.startswith("data:") and (data := data[5:].strip()).startswith("{"):
            if begun:
                begun()
                begun = None
            yield json.loads(data)


def read(endpoint: str, status: int, data: bytes) -> Answer:
    try:
        content = json.loads(data)
    except ValueError:
        shown = data[:80].decode(errors="replace").strip()
        reason = f"HTTP {status}: {shown}" if shown else f"HTTP {status}, no JSON"
        return Answer(500 if status == 200 else status, reason)
    if status != 200 or not isinstance(content, dict):
        return Answer(status, f"HTTP {status}: {_reason(content)}")
    return read_events(endpoint, [content])


def read_events(endpoint: str, events: Sequence[Event]) -> Answer:
    """An answer from the events of its stream; one that is not streamed is a single event."""
    for event in events:
        if (error := event.get("error")) or event.get("type") in ("error", "response.failed"):
            return Answer(500, f"an answer with an error: {_reason(error or event)}")
    try:
        return _READERS[endpoint](events)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        return Answer(500, f"unreadable answer: {type(error).__name__}: {error}")


def _reason(content: Any) -> str:
    """An error's sentence, in one line."""
    while isinstance(content, (dict, list)) and content:
        values = list(content.values()) if isinstance(content, dict) else content
        keys = ("error", "message", "msg", "detail")
        named = [content[k] for k in keys if k in content] if isinstance(content, dict) else []
        content = (named or values)[0]
    return " ".join(str(content).split())[:160]


def _usage(answer: Answer, usage: Mapping[str, Any]) -> Answer:
    answer.prompt_tokens = usage.get("prompt_tokens", usage.get("input_tokens"))
    if cached := usage.get("cache_read_input_tokens"):  # Anthropic's API counts them apart
        answer.prompt_tokens = (answer.prompt_tokens or 0) + cached
    answer.answer_tokens = usage.get("completion_tokens", usage.get("output_tokens"))
    return answer


def _read_choices(events: Sequence[Event]) -> Answer:
    answer = Answer(200)
    usage: Event = {}
    texts: dict[int, str] = {}
    finishes: dict[int, str | None] = {}
    chances: dict[int, dict[str, list[Any]]] = {}
    calls: list[dict[str, Any]] = []
    for event in events:
        usage = event.get("usage") or usage
        for part in event.get("choices") or ():
            number = part.get("index", 0)
            message = part.get("delta") or part.get("message") or part
            text = message.get("content") or message.get("text") or ""
            texts[number] = texts.get(number, "") + text
            finishes[number] = part.get("finish_reason") or finishes.get(number)
            answer.reasoning += message.get("reasoning_content") or message.get("reasoning") or ""
            for call in message.get("tool_calls") or ():
                _join_call(calls, call)
            for name, values in (part.get("logprobs") or {}).items():
                if isinstance(values, list):
                    chances.setdefault(number, {}).setdefault(name, []).extend(values)
    answer.texts = [texts[number] for number in sorted(texts)]
    answer.finishes = [finishes[number] for number in sorted(texts)]
    answer.calls = [(call["name"], call["arguments"]) for call in calls]
    answer.chances = next((_chances(chances[number]) for number in sorted(chances)), None)
    return _usage(answer, usage)


def _join_call(calls: list[dict[str, Any]], part: Event) -> None:
    """Add a part of a call: a new one, or more of the arguments of one with the same index."""
    number, function = part.get("index", len(calls)), part.get("function") or {}
    known = [one for one in calls if one["index"] == number]
    if not known or (function.get("name") and known[0]["name"]):
        calls.append({"index": number, "name": "", "arguments": ""})
        known = calls[-1:]
    for name in ("name", "arguments"):
        known[0][name] += function.get(name) or ""


def _chances(content: Mapping[str, Any]) -> list[Chance] | None:
    """Log-probabilities in one of the two forms."""
    if content.get("content"):
        return [
            (
                _token(one),
                one["logprob"],
                [(_token(t), t["logprob"]) for t in one.get("top_logprobs") or ()],
            )
            for one in content["content"]
            if one
        ]
    if not content.get("tokens") or not content.get("token_logprobs"):
        return None
    tops = content.get("top_logprobs") or [{}] * len(content["tokens"])
    return [
        (
            _token({"token": token}),
            chance,
            [(_token({"token": t}), c) for t, c in (top or {}).items()],
        )
        for token, chance, top in zip(
            content["tokens"], content["token_logprobs"], tops, strict=False
        )
    ]


def _token(one: Mapping[str, Any]) -> int:
    """A reported token's id, from its id or its text; -1 if it has none."""
    if isinstance(one.get("id"), int):
        return int(one["id"])
    text = str(one.get("token", "")).replace("Ġ", " ")
    for candidate in (text, f" {text.strip()}"):
        if candidate in TOKENS:
            return TOKENS.index(candidate)
    found = text.removeprefix("token_id:")
    return int(found) if found.isdigit() else -1


def _read_response(events: Sequence[Event]) -> Answer:
    answer = Answer(200, texts=[""])
    content = next((e["response"] for e in reversed(events) if e.get("response")), events[-1])
    for item in content["output"]:
        if item.get("type") == "function_call":
            answer.calls.append((item["name"], item["arguments"]))
        for part in item.get("content") or item.get("summary") or ():
            if "reasoning" in item["type"]:
                answer.reasoning += part["text"]
            else:
                answer.texts[0] += part.get("text") or ""
    deltas = "".join(e["delta"] for e in events if e.get("type") == "response.output_text.delta")
    if len(events) > 1 and deltas.strip() != answer.text.strip():
        raise ValueError(f"deltas {deltas[:40]!r} are not the text {answer.text[:40]!r}")
    cut = content.get("status") == "incomplete"
    answer.finishes = ["length" if cut else "tool_calls" if answer.calls else "stop"]
    return _usage(answer, content.get("usage") or {})


_STOPS = {"max_tokens": "length", "tool_use": "tool_calls"}


def _read_message(events: Sequence[Event]) -> Answer:
    answer, reason = Answer(200, texts=[""]), None
    usage: dict[str, Any] = {}
    blocks: dict[int, dict[str, Any]] = {}
    for event in events:
        whole = event.get("message") or event
        usage |= whole.get("usage") or {}
        delta = event.get("delta") or {}
        reason = delta.get("stop_reason") or whole.get("stop_reason") or reason
        blocks |= enumerate(whole.get("content") or ())
        if block := event.get("content_block"):
            blocks[event["index"]] = dict(block)
        for name in ("text", "thinking", "partial_json"):
            if part := delta.get(name):
                block = blocks[event["index"]]
                block[name] = (block.get(name) or "") + part
    for block in blocks.values():
        answer.texts[0] += block.get("text") or ""
        answer.reasoning += block.get("thinking") or ""
        if block.get("type") == "tool_use":
            arguments = block.get("partial_json") or json.dumps(block["input"])
            answer.calls.append((block["name"], arguments))
    answer.finishes = [_STOPS.get(str(reason), "stop") if reason else None]
    return _usage(answer, usage)


def _read_vectors(events: Sequence[Event]) -> Answer:
    """An encoder's vectors, or its scores, by the number of the text."""
    answer = Answer(200)
    for one in events[0].get("data") or events[0]["results"]:
        vector = one.get("embedding") or [one["relevance_score"]]
        answer.texts = ["base64" if isinstance(vector, str) else "float"]
        if isinstance(vector, str):
            vector = array("f", base64.b64decode(vector)).tolist()
        answer.vectors[one["index"]] = vector
    return answer


_READERS: dict[str, Callable[[Sequence[Event]], Answer]] = {
    CHAT: _read_choices,
    COMPLETIONS: _read_choices,
    RESPONSES: _read_response,
    MESSAGES: _read_message,
    **dict.fromkeys(ENCODERS, _read_vectors),
}
