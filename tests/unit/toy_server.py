"""A correct server of the scripted model in plain Python, with faults to plant."""

from __future__ import annotations

import contextlib
import json
import math
import random
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import accumulate

from mlx_patches.lab.server.oracle import (
    CALL,
    EOS,
    EVERYTHING,
    TOKENS,
    WINDOW,
    Language,
    log_softmax,
    penalize,
)
from mlx_patches.lab.server.pictures import WORDS, draw, spell

OTHER = "other"
COLOURS = {draw(colour): colour for colour in range(len(WORDS))}
PENALTIES = ("repetition", "presence", "frequency")
# Seconds per token: long enough for requests to overlap.
STEP = 0.0003


class Toy(ThreadingHTTPServer):
    """The server. ``faults`` are pairs of a fault and its parameter."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, *faults):
        super().__init__(("127.0.0.1", 0), Handler)
        self.faults = set(faults)
        self.languages = {False: Language(), True: Language(other=True)}
        self.running: list[dict] = []
        self.shaken = self.swapped = False
        self.lock = threading.Lock()

    def handle_error(self, request, client_address):
        """Clients that hang up are no news."""

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    def has(self, kind, name=""):
        return (kind, name) in self.faults


@contextlib.contextmanager
def serving(*faults) -> Iterator[Toy]:
    toy = Toy(*faults)
    thread = threading.Thread(target=toy.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield toy
    finally:
        toy.shutdown()
        toy.server_close()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Without this, each small answer waits for an acknowledgement.
    disable_nagle_algorithm = True

    def log_message(self, *args):
        pass

    def do_GET(self):
        self.reply(200, {"data": [{"id": "toy"}]})

    def do_POST(self):
        data = self.rfile.read(int(self.headers["Content-Length"]))
        chat = self.path.endswith("chat/completions")
        if not chat and not self.path.endswith("/completions"):
            return self.reply(404, {"error": "not found"})
        try:
            fields = json.loads(data)
            fields["messages" if chat else "prompt"]
        except (ValueError, LookupError) as error:
            self.server.shaken = True
            return self.reply(400, {"error": {"message": str(error)}})
        try:
            Answering(self, self.server, fields, chat).answer()
        except OSError:
            self.server.shaken = True
            self.close_connection = True

    def reply(self, status, content):
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def read(content, blind):
    """A message's content with its pictures spelled."""
    if isinstance(content, str):
        return content
    *pictures, text = content
    if blind:
        return text["text"]
    return f"{spell(*(COLOURS[one['image_url']['url']] for one in pictures))} {text['text']}"


class Answering:
    """One request."""

    def __init__(self, handler, toy, fields, chat):
        self.handler, self.toy, self.chat = handler, toy, chat
        self.fields = fields
        is_other = fields["model"] == OTHER and not toy.has("drop", "model")
        toy.swapped |= is_other
        self.language = toy.languages[is_other or (toy.has("swap") and toy.swapped)]
        self.plant()
        if self.fields.get("adapters"):
            self.language = Language(adapted=True)
        self.draw = random.Random(self.fields.get("seed"))
        switch = self.fields.get("chat_template_kwargs") or self.fields
        thinks = switch.get("enable_thinking", True)
        if chat:
            blind = toy.has("drop", "picture")
            messages = [
                one | {"content": read(one["content"], blind)}
                for one in self.fields["messages"]
                if isinstance(one["content"], str) or not toy.has("lost parts")
            ]
            self.prompt = self.language.chat(messages, thinks)
        else:
            self.prompt = self.language.encode(fields["prompt"])

    def plant(self):
        """Apply the faults that change a request's fields."""
        toy, fields = self.toy, self.fields
        turns = len(fields.get("messages", ())) > 1
        with toy.lock:
            for kind, name in toy.faults:
                apply = {
                    "drop": True,
                    "streamed": fields.get("stream"),
                    "turns": turns,
                    "later turns": len(fields.get("messages", ())) > 3,
                    "seeded": "seed" in fields,
                    "shaken": toy.shaken,
                }.get(kind)
                if kind == "first rules" and toy.running:
                    fields.pop(name, None)
                    fields |= {k: v for k, v in toy.running[0].items() if k == name}
                elif kind == "crowd" and len(toy.running) > 1:
                    fields.pop(name, None)
                elif kind == "last rules":
                    for one in toy.running:
                        one.pop(name, None)
                        one |= {k: v for k, v in fields.items() if k == name}
                elif apply:
                    fields.pop(name, None)
            toy.running.append(fields)

    def answer(self):
        choices = self.fields.get("n", 1)
        try:
            if self.fields.get("stream"):
                self.stream()
            else:
                done = [self.finish(list(self.generate())) for _ in range(choices)]
                found = [self.choice(n, *one) for n, one in enumerate(done)]
                usage = self.usage(len(done[0][0]))
                self.handler.reply(200, {"choices": found, "usage": usage})
        finally:
            self.toy.running.remove(self.fields)

    def usage(self, count):
        shift = self.toy.has("usage")
        return {"prompt_tokens": len(self.prompt) + shift, "completion_tokens": count}

    def stream(self):
        handler = self.handler
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.send_header("Connection", "close")
        handler.end_headers()
        count = self.fields.get("n", 1)
        tokens: list[int] = []

        def send(choice, **more):
            event = {"choices": [choice] if choice else [], **more}
            handler.wfile.write(f"data: {json.dumps(event)}\n\n".encode())

        # The first part is sent at once; the rest is parsed at the end.
        for token in self.generate():
            if not tokens:
                send({"index": 0, ("delta" if self.chat else "text"): {} if self.chat else ""})
            tokens.append(token)
        for number in range(count):
            tokens, *rest = self.finish(list(self.generate()) if number else tokens)
            choice = self.choice(number, tokens, *rest)
            if self.chat:
                choice["delta"] = choice.pop("message")
            send(choice)
        if (self.fields.get("stream_options") or {}).get("include_usage"):
            send(None, usage=self.usage(len(tokens)))
        handler.wfile.write(b"data: [DONE]\n\n")
        handler.close_connection = True

    # The model.

    def generate(self):
        fields, answer = self.fields, []
        limit = fields.get("max_completion_tokens") or fields.get("max_tokens") or 100
        context = list(self.prompt)
        if self.toy.has("kept cache") and len(fields.get("messages", ())) > 1:
            context.remove(self.language.ids[EOS])
        while len(answer) < limit:
            time.sleep(STEP)
            row = self.process(list(self.language.logits([*context, *answer])), answer)
            if thinks := fields.get("thinking_budget"):
                begun = self.language.ids["<think>"]
                if begun in answer and len(answer) - answer.index(begun) == thinks + 1:
                    row[self.language.ids["</think>"]] = 1000.0
            answer.append(self.choose(row))
            yield answer[-1]
            if TOKENS[answer[-1]] == EOS and not self.toy.has("stop token"):
                return
            if fields.get("stop") and self.cut(self.language.decode(answer)) is not None:
                return

    def process(self, row, answer):
        fields = self.fields
        whole = len(fields.get("messages", ())) > 1 and self.toy.has("prefix")
        prompt = self.prompt[-2:] if whole else self.prompt
        for kind in PENALTIES:
            if amount := fields.get(f"{kind}_penalty"):
                size = fields.get(f"{kind}_context_size")
                sight = WINDOW if size else EVERYTHING
                row = penalize(kind, amount, sight, size or 20)(row, prompt, answer)
        for token, bias in (fields.get("logit_bias") or {}).items():
            row[int(token)] += bias
        return row

    def choose(self, row):
        fields = self.fields
        heat = fields.get("temperature", 1.0)
        if heat == 0:
            return row.index(max(row))
        high = max(row)
        chances = {t: math.exp((v - high) / heat) for t, v in enumerate(row) if v > high - 40}
        total = sum(chances.values())
        chances = {t: c / total for t, c in sorted(chances.items(), key=lambda one: -one[1])}
        best = next(iter(chances.values()))
        kept, before = [], 0.0
        likely = [t for t, c in chances.items() if c >= fields.get("xtc_threshold", 0)]
        dropped = likely[:-1] if fields.get("xtc_probability") else ()
        for number, (token, chance) in enumerate(chances.items()):
            if (
                number < fields.get("top_k", len(row))
                and before < fields.get("top_p", 1.0)
                and chance >= fields.get("min_p", 0) * best
                and token not in dropped
            ):
                kept.append(token)
            before += chance
        if mass := fields.get("typical_p"):
            entropy = -sum(c * math.log(c) for c in chances.values())
            kept.sort(key=lambda t: abs(-math.log(chances[t]) - entropy))
            before = [0.0, *accumulate(chances[t] for t in kept)]
            kept = [t for t, end in zip(kept, before, strict=False) if end < mass]
        return self.draw.choices(kept, [chances[t] for t in kept])[0]

    def cut(self, text):
        """The text before a stop string, if it has one."""
        stops = self.fields.get("stop") or []
        stops = [stops] if isinstance(stops, str) else stops
        if self.toy.has("split stops"):
            stops = [stop for stop in stops if f" {stop.strip()}" in TOKENS]
        ends = [text.index(stop) for stop in stops if stop in text]
        return text[: min(ends)] if ends else None

    def finish(self, tokens):
        """The tokens, text, finish reason, calls and reasoning."""
        text = self.language.decode(tokens)
        finish = "length"
        if tokens and TOKENS[tokens[-1]] == EOS:
            tokens, finish = tokens[:-1], "stop"
        if (before := self.cut(text)) is not None:
            text, finish = before, "stop"
        calls, thought = [], ""
        if "</think>" in text and not self.toy.has("thinking"):
            thought, _, text = text.partition("</think>")
            thought = thought.replace("<think>", "")
        tools = self.fields.get("tools") and self.fields.get("tool_choice") != "none"
        unreadable = self.toy.has("lost call") and "<tool_call>" in text and CALL not in text
        if tools and (CALL in text or self.fields.get("tool_choice") == "required" or unreadable):
            if not unreadable:
                calls = [{"index": 0, "function": {"name": "f", "arguments": '{"x": 1}'}}]
            text, finish = "", "tool_calls"
        form = (self.fields.get("response_format") or {}).get("type")
        if form:
            text = '"ba"' if form == "json_schema" else "{}"
        if self.toy.has("finish reason"):
            finish = "stop" if finish == "length" else finish
        return tokens, text, finish, calls, thought

    def choice(self, number, tokens, text, finish, calls, thought):
        found = {"index": number, "finish_reason": finish}
        if self.chat:
            message = {"content": text, "tool_calls": calls, "reasoning_content": thought}
            found["message"] = message
        else:
            found["text"] = text
        if wanted := self.fields.get("logprobs"):
            found["logprobs"] = self.chances(tokens, wanted)
        return found

    def chances(self, tokens, wanted):
        tops = self.fields.get("top_logprobs", 0) if self.chat else wanted
        parts, context = [], list(self.prompt)
        for token in tokens:
            row = log_softmax(self.language.logits(context))
            order = sorted(range(len(row)), key=row.__getitem__, reverse=True)
            if self.toy.has("shifted chances"):
                row = row[1:] + row[:1]
            if self.toy.has("unsorted tops"):
                order = order[1:]
            top = [{"token": TOKENS[t], "logprob": row[t]} for t in order[:tops]]
            parts.append({"token": TOKENS[token], "logprob": row[token], "top_logprobs": top})
            context.append(token)
        if self.chat:
            return {"content": parts}
        return {
            "tokens": [one["token"] for one in parts],
            "token_logprobs": [one["logprob"] for one in parts],
            "top_logprobs": [{t["token"]: t["logprob"] for t in p["top_logprobs"]} for p in parts],
        }
