"""Sends requests to a server's endpoints, and reads their answers into one form."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from .oracle import TOKENS, Language

CHAT, COMPLETIONS, RESPONSES, MESSAGES = "chat", "completions", "responses", "messages"
PATHS = {
    CHAT: "/v1/chat/completions",
    COMPLETIONS: "/v1/completions",
    RESPONSES: "/v1/responses",
    MESSAGES: "/v1/messages",
}
# The endpoints' names of fields that the matrix has under another name.
NAMES = {
    RESPONSES: {"max_tokens": "max_output_tokens"},
    MESSAGES: {"stop": "stop_sequences"},
}
ANSWER_SECONDS = 30.0
NO_ANSWER = "no answer within"
Message = dict[str, str]


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
        """The request's JSON."""
        names = NAMES.get(endpoint, {})
        key = {COMPLETIONS: "prompt", RESPONSES: "input"}.get(endpoint, "messages")
        text = "".join(self.texts) if endpoint == COMPLETIONS else self.messages()
        fields = {"max_tokens": self.tokens, **self.fields}
        fields = {names.get(name, name): value for name, value in fields.items()}
        return {"model": model, key: text, **{k: v for k, v in fields.items() if v is not None}}

    def prompt(self, endpoint: str, language: Language) -> list[int]:
        """The prompt's tokens."""
        if endpoint == COMPLETIONS:
            return language.encode("".join(self.texts))
        kwargs = self.fields.get("chat_template_kwargs", self.fields)
        return language.chat(self.messages(), kwargs.get("enable_thinking", True))


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
    seconds: float = 0.0

    @property
    def text(self) -> str:
        """The first choice's text."""
        return self.texts[0] if self.texts else ""

    @property
    def finish(self) -> str | None:
        """The first choice's finish reason."""
        return self.finishes[0] if self.finishes else None

    @property
    def refused(self) -> bool:
        """Whether the server refused the request with a reason."""
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
        """Send a body, and read the answer."""
        start = time.monotonic()
        try:
            status, kind, lines = self._lines(PATHS[endpoint], body, start)
            parts = list(_events(lines, begun)) if "event-stream" in kind else None
            answer = (
                read_stream(endpoint, status, parts)
                if parts is not None
                else read(endpoint, status, b"".join(lines))
            )
        except (OSError, http.client.HTTPException) as error:
            self._drop()
            late = isinstance(error, TimeoutError)
            answer = Answer(
                0,
                f"{NO_ANSWER} {self.seconds:.0f} s" if late else f"{type(error).__name__}: {error}",
            )
        answer.seconds = time.monotonic() - start
        return answer

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
        """The JSON of a GET request; None without one."""
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
    """The events of a stream."""
    for line in lines:
        data = line.decode(errors="replace").strip()
        if data.startswith("data:") and (data := data[5:].strip()).startswith("{"):
            if begun:
                begun()
                begun = None
            yield json.loads(data)


def read(endpoint: str, status: int, data: bytes) -> Answer:
    """An answer from its JSON."""
    try:
        content = json.loads(data)
    except ValueError:
        shown = data[:80].decode(errors="replace").strip()
        reason = f"HTTP {status}: {shown}" if shown else f"HTTP {status}, no JSON"
        return Answer(500 if status == 200 else status, reason)
    if status != 200 or not isinstance(content, dict):
        return Answer(status, f"HTTP {status}: {_reason(content)}")
    if error := content.get("error"):
        return Answer(500, f"HTTP {status} with an error: {_reason(error)}")
    try:
        return _READERS[endpoint](content)
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


def _usage(answer: Answer, usage: Mapping[str, Any] | None) -> Answer:
    usage = usage or {}
    answer.prompt_tokens = usage.get("prompt_tokens", usage.get("input_tokens"))
    if cached := usage.get("cache_read_input_tokens"):  # Anthropic's API counts them apart
        answer.prompt_tokens = (answer.prompt_tokens or 0) + cached
    answer.answer_tokens = usage.get("completion_tokens", usage.get("output_tokens"))
    return answer


def _read_choices(content: Mapping[str, Any]) -> Answer:
    answer = Answer(200)
    for choice in sorted(content["choices"], key=lambda one: one.get("index", 0)):
        message = choice.get("message") or choice
        answer.texts.append(message.get("content") or message.get("text") or "")
        answer.finishes.append(choice.get("finish_reason"))
        answer.reasoning += message.get("reasoning_content") or message.get("reasoning") or ""
        for call in message.get("tool_calls") or ():
            answer.calls.append((call["function"]["name"], call["function"]["arguments"]))
        if answer.chances is None and choice.get("logprobs"):
            answer.chances = _chances(choice["logprobs"])
    return _usage(answer, content.get("usage"))


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


def _read_response(content: Mapping[str, Any]) -> Answer:
    answer = Answer(200, texts=[""])
    for item in content["output"]:
        if item.get("type") == "function_call":
            answer.calls.append((item["name"], item["arguments"]))
        for part in item.get("content") or item.get("summary") or ():
            if "reasoning" in item["type"]:
                answer.reasoning += part["text"]
            else:
                answer.texts[0] += part.get("text") or ""
    cut = content.get("status") == "incomplete"
    answer.finishes = ["length" if cut else "tool_calls" if answer.calls else "stop"]
    return _usage(answer, content.get("usage"))


_STOPS = {"max_tokens": "length", "tool_use": "tool_calls"}


def _read_message(content: Mapping[str, Any]) -> Answer:
    answer = Answer(200, texts=[""])
    for block in content["content"]:
        answer.texts[0] += block.get("text") or ""
        answer.reasoning += block.get("thinking") or ""
        if block.get("type") == "tool_use":
            answer.calls.append((block["name"], json.dumps(block["input"])))
    reason = content.get("stop_reason")
    answer.finishes = [_STOPS.get(str(reason), "stop") if reason else None]
    return _usage(answer, content.get("usage"))


_READERS: dict[str, Callable[[Mapping[str, Any]], Answer]] = {
    CHAT: _read_choices,
    COMPLETIONS: _read_choices,
    RESPONSES: _read_response,
    MESSAGES: _read_message,
}


def read_stream(endpoint: str, status: int, events: Sequence[dict[str, Any]]) -> Answer:
    """An answer from the events of its stream."""
    for event in events:
        if (error := event.get("error")) or event.get("type") in ("error", "response.failed"):
            return Answer(500, f"the stream has an error: {_reason(error or event)}")
    try:
        content = _JOINERS[endpoint](events)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        return Answer(500, f"unreadable stream: {type(error).__name__}: {error}")
    return read(endpoint, status, json.dumps(content).encode())


def _join_choices(events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    choices: dict[int, dict[str, Any]] = {}
    usage = None
    for event in events:
        usage = event.get("usage") or usage
        for part in event.get("choices") or ():
            number = part.get("index", 0)
            whole = choices.setdefault(number, {"index": number, "text": "", "message": {}})
            message = whole["message"]
            delta = part.get("delta") or {"content": part.get("text")}
            for name in ("content", "reasoning_content", "reasoning"):
                message[name] = message.get(name, "") + (delta.get(name) or "")
            for call in delta.get("tool_calls") or ():
                calls = message.setdefault("tool_calls", [])
                _join_call(calls, call)
            whole["finish_reason"] = part.get("finish_reason") or whole.get("finish_reason")
            for name, values in (part.get("logprobs") or {}).items():
                if isinstance(values, list):
                    whole.setdefault("logprobs", {}).setdefault(name, []).extend(values)
    return {"choices": list(choices.values()), "usage": usage}


def _join_call(calls: list[dict[str, Any]], part: Mapping[str, Any]) -> None:
    """Add a part of a call: a new one, or more of the arguments of one with the same index."""
    number = part.get("index", len(calls))
    known = [one for one in calls if one["index"] == number]
    one = part.get("function") or {}
    if not known or (one.get("name") and known[0]["function"]["name"]):
        calls.append({"index": number, "function": {"name": "", "arguments": ""}})
        known = calls[-1:]
    function = known[0]["function"]
    function["name"] += one.get("name") or ""
    function["arguments"] += one.get("arguments") or ""


def _join_response(events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    last = next(e for e in reversed(events) if e.get("response"))["response"]
    text = "".join(e["delta"] for e in events if e.get("type") == "response.output_text.delta")
    whole = "".join(
        part.get("text") or ""
        for item in last["output"]
        if item.get("type") == "message"
        for part in item["content"]
    )
    if text.strip() != whole.strip():
        raise ValueError(f"deltas {text[:40]!r} are not the text {whole[:40]!r}")
    return dict(last)


def _join_message(events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    blocks: dict[int, dict[str, Any]] = {}
    whole: dict[str, Any] = {"usage": {}}
    for event in events:
        kind = event.get("type")
        if kind == "message_start":
            whole["usage"] |= event["message"].get("usage") or {}
        elif kind == "content_block_start":
            blocks[event["index"]] = {**event["content_block"], "input": ""}
        elif kind == "content_block_delta":
            for name, key in (
                ("text", "text"),
                ("thinking", "thinking"),
                ("partial_json", "input"),
            ):
                block = blocks[event["index"]]
                block[key] = (block.get(key) or "") + (event["delta"].get(name) or "")
        elif kind == "message_delta":
            whole["stop_reason"] = event["delta"].get("stop_reason")
            whole["usage"] |= event.get("usage") or {}
    for block in blocks.values():
        block["input"] = json.loads(block["input"] or "{}")
    return {**whole, "content": list(blocks.values())}


_JOINERS: dict[str, Callable[[Sequence[dict[str, Any]]], dict[str, Any]]] = {
    CHAT: _join_choices,
    COMPLETIONS: _join_choices,
    RESPONSES: _join_response,
    MESSAGES: _join_message,
}
