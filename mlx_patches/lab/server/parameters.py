"""The parameters of the matrix: what is sent, and which answers are right.

Each choice of values makes the outcome certain: a support of one or two tokens over 40 tokens, a
penalty that changes a greedy path, a bias of 100. A wrong verdict by luck is below one in 10^9.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .client import CHAT, COMPLETIONS, MESSAGES, RESPONSES, Answer, Request
from .oracle import (
    BREAK,
    BROKEN,
    CONTEXT,
    LADDER,
    LOOP,
    PONDER,
    RECENT,
    RING,
    SIGHTS,
    TELL,
    THOUGHT,
    THUS,
    TOKENS,
    USE,
    WINDOW,
    WRITE,
    Language,
    Processor,
    log_softmax,
    penalize,
)

# The end of a text whose rest is not certain.
ANY = "\N{HORIZONTAL ELLIPSIS}"
# Anthropic's API allows no more than 1.
GREEDY, WARM = {"temperature": 0}, {"temperature": 1.0}


@dataclass
class Asked:
    """What was asked: the requests with their prompts' tokens, and what the server's penalties see.

    ``sights`` are the sights that the answer must fit one of; ``fits`` are those it did.
    """

    endpoint: str
    language: Language
    requests: Sequence[Request]
    sights: Sequence[str] = SIGHTS
    fits: list[str] = field(default_factory=list)

    def prompt(self, index: int = 0) -> list[int]:
        """A request's prompt in tokens."""
        return self.requests[index].prompt(self.endpoint, self.language)

    def greedy(self, index: int = 0, processor: Processor | None = None) -> str:
        """The greedy text of a request, with ANY at the end if rounding decides the rest."""
        prompt, count = self.prompt(index), self.requests[index].tokens
        tokens, open_ended = self.language.greedy(prompt, count, processor)
        return self.language.decode(tokens).strip() + (ANY if open_ended else "")

    def ranks(self, answer: Answer, index: int = 0) -> list[int]:
        """The rank of each token of a ring text."""
        return self.language.ranks(self.prompt(index), answer.tokens(self.language))


# The fault of the answers, empty if they are right.
Judge = Callable[[Sequence[Answer], Asked], str]


@dataclass(frozen=True)
class Parameter:
    """One parameter.

    Args:
        requests: what is sent; the answers are judged together.
        plain: a request that differs in this parameter only, for its neighbours.
        is_plain: judges a plain answer; a request with the parameter whose answers pass shows that
            the parameter is ignored.
        stream_only: only streamed requests have it.
        contexts: the names of its contexts; empty: all.
    """

    name: str
    requests: tuple[Request, ...]
    judge: Judge
    plain: Request
    is_plain: Judge
    ignored: Judge | None = None
    endpoints: tuple[str, ...] = (CHAT, COMPLETIONS)
    contexts: tuple[str, ...] = ()
    model: str = ""
    stream_only: bool = False

    def is_ignored(self, answers: Sequence[Answer], asked: Asked) -> bool:
        """Whether the answers are those of requests without the parameter."""
        return not (self.ignored or self.is_plain)(answers, asked)


def ring(fields: Mapping[str, Any], tokens: int = 40) -> Request:
    """A request for a ring text."""
    return Request((f"{RING[0]}{RING[5]}",), fields, tokens)


def in_ranks(allowed: range, beyond: int = -1) -> Judge:
    """All ranks are allowed ones, and the largest is beyond a number."""

    def judge(answers: Sequence[Answer], asked: Asked) -> str:
        for number, answer in enumerate(answers):
            ranks = asked.ranks(answer, number)
            short = len(ranks) < asked.requests[number].tokens
            if bad := [rank for rank in ranks if rank not in allowed] or short:
                shown = "a cut answer" if short else f"ranks {sorted(set(bad))}"  # type: ignore[arg-type]
                return f"{shown}, not {allowed.start} to {allowed.stop - 1}: {answer.text[:40]!r}"
            if max(ranks) <= beyond:
                return f"no rank above {beyond}: the answer is {'greedy' if not beyond else 'cut'}"
        return ""

    return judge


# A sampled text: every rank may occur, and one beyond the second does.
SAMPLED = in_ranks(range(len(LADDER)), 1)


def is_greedy(answers: Sequence[Answer], asked: Asked) -> str:
    """The answers are the greedy texts."""
    return compare(answers, asked, lambda number: asked.greedy(number))


def ends(answers: Sequence[Answer], reason: str, fault: str) -> str:
    """The fault of texts, or that of the first one's finish reason."""
    found = answers[0].finish
    return fault or ("" if found == reason else f"finish reason {found}, not {reason}")


def compare(answers: Sequence[Answer], asked: Asked, wanted: Callable[[int], str]) -> str:
    """The fault of texts that must be equal."""
    for number, answer in enumerate(answers):
        text, want = answer.text.strip(), wanted(number)
        if want.endswith(ANY):
            want = want[:-1]
            text = text[: len(want)]
        if text != want:
            at = next(
                (i for i, (a, b) in enumerate(zip(text, want, strict=False)) if a != b),
                min(len(text), len(want)),
            )
            part = slice(max(0, at - 12), at + 24)
            return f"{text[part]!r}, not {want[part]!r}, at character {at}"
    return ""


def _sampler(
    name: str, fields: Mapping[str, Any], allowed: range, beyond: int = -1, **more: Any
) -> Parameter:
    return Parameter(
        name,
        (ring({**WARM, **fields}),),
        in_ranks(allowed, beyond),
        ring(WARM),
        SAMPLED,
        **more,
    )


def _judge_temperature(answers: Sequence[Answer], asked: Asked) -> str:
    judges = zip(asked.requests, answers, (is_greedy, SAMPLED, is_greedy), strict=False)
    for request, answer, judge in judges:
        if fault := judge([answer], replace(asked, requests=[request])):
            return f"temperature {request.fields['temperature']}: {fault}"
    return ""


def _is_one_temperature(answers: Sequence[Answer], asked: Asked) -> str:
    """All answers are sampled, or all are greedy: then the temperature is ignored."""
    return SAMPLED(answers, asked) and is_greedy(answers, asked)


def _judge_seed(answers: Sequence[Answer], asked: Asked) -> str:
    if fault := SAMPLED(answers, asked):
        return fault
    texts = [answer.text for answer in answers]
    if texts[0] != texts[1]:
        return "the same seed gives two texts"
    return "two seeds give one text" if texts[0] == texts[2] else ""


def _penalty_request(fields: Mapping[str, Any], tokens: int = 28) -> Request:
    """Loop words long before the end and at it: each sight gives another greedy path."""
    filler = "".join(RING[10:34])
    return Request((f"{LOOP[1]}{filler}{LOOP[0]}",), {**GREEDY, **fields}, tokens)


def _penalty(kind: str, amount: float, size: int = 0) -> Parameter:
    """A penalty, or with a size the number of tokens that it sees."""
    fields = {f"{kind}_penalty": amount}

    def judge(answers: Sequence[Answer], asked: Asked, size: int = size) -> str:
        fault = ""
        for sight in asked.sights:
            if size and sight not in (WINDOW, RECENT):
                continue
            process = penalize(kind, amount, sight, size or 20)
            found = compare(answers, asked, lambda n, p=process: asked.greedy(n, p))  # type: ignore[misc]
            if not found:
                asked.fits.append(sight)
            fault = fault or found
        return "" if asked.fits else fault

    def is_whole(answers: Sequence[Answer], asked: Asked) -> str:
        return judge(answers, asked, 0) and is_greedy(answers, asked)

    if not size:
        request = _penalty_request(fields)
        return Parameter(f"{kind}_penalty", (request,), judge, _penalty_request({}), is_greedy)
    name = f"{kind}_context_size"
    request = _penalty_request({**fields, name: size})
    return Parameter(name, (request,), judge, _penalty_request(fields), is_whole)


def _logit_bias() -> Parameter:
    """One token has the bias that makes it certain, at every step."""
    token, bias = TOKENS.index(RING[20]), 100

    def process(row: list[float], prompt: Sequence[int], answer: Sequence[int]) -> list[float]:
        row[token] += bias
        return row

    def judge(answers: Sequence[Answer], asked: Asked) -> str:
        return compare(answers, asked, lambda n: asked.greedy(n, process))

    request = ring({**GREEDY, "logit_bias": {str(token): bias}}, 24)
    return Parameter("logit_bias", (request,), judge, ring(GREEDY, 24), is_greedy)


def _stop(name: str, stop: str | list[str], end: str) -> Parameter:
    def judge(answers: Sequence[Answer], asked: Asked) -> str:
        fault = compare(answers, asked, lambda n: _before(asked.greedy(n), end))
        return ends(answers, "stop", fault)

    request = ring({**GREEDY, "stop": stop}, 24)
    every = (CHAT, COMPLETIONS, MESSAGES)
    plain = ring(GREEDY, 24)
    kinds = every if isinstance(stop, list) else every[:2]
    return Parameter(name, (request,), judge, plain, is_greedy, endpoints=kinds)


def _before(text: str, stop: str) -> str:
    return text[: text.index(stop)].strip()


def _limit(name: str) -> Parameter:
    """A text that would end by itself: a server that ignores the limit does not go on."""

    def judge(answers: Sequence[Answer], asked: Asked) -> str:
        return ends(answers, "length", is_greedy(answers, asked))

    def is_whole(answers: Sequence[Answer], asked: Asked) -> str:
        whole = [replace(one, tokens=24) for one in asked.requests]
        return is_greedy(answers, replace(asked, requests=whole))

    # A field max_tokens replaces that of every request; None omits it.
    named = {"max_tokens": 3} if name == "max_tokens" else {"max_tokens": None, name: 3}
    request = Request((f"{RING[0]}{TELL}",), {**GREEDY, **named}, 3)
    points = (CHAT, COMPLETIONS, RESPONSES, MESSAGES) if name == "max_tokens" else (CHAT,)
    return Parameter(name, (request,), judge, ring(GREEDY), is_greedy, is_whole, points)


def _judge_choices(answers: Sequence[Answer], asked: Asked) -> str:
    texts = answers[0].texts
    if len(texts) != asked.requests[0].fields.get("n", 1):
        return f"{len(texts)} choices"
    parts = [replace(answers[0], texts=[text]) for text in texts]
    one = replace(asked, requests=[asked.requests[0]] * len(parts))
    if fault := SAMPLED(parts, one):
        return fault
    return "both choices are equal" if len(set(texts)) < len(texts) else ""


def _judge_chances(answers: Sequence[Answer], asked: Asked) -> str:
    """Log-probabilities: those of the answer's tokens, and lists of the most likely, best first."""
    answer, request = answers[0], asked.requests[0]
    if fault := is_greedy(answers, asked):
        return fault
    tops = request.fields.get("top_logprobs") or (
        request.fields["logprobs"] if asked.endpoint == COMPLETIONS else 0
    )
    if not answer.chances:
        return "no log-probabilities"
    tokens, prompt = answer.tokens(asked.language), asked.prompt()
    if len(answer.chances) != len(tokens):
        return f"{len(answer.chances)} log-probabilities for {len(tokens)} tokens"
    for number, (token, chance, top) in enumerate(answer.chances):
        row = log_softmax(asked.language.logits([*prompt, *tokens[:number]]))
        if token != tokens[number]:
            return f"the log-probability of {_name(token)}, not of {_name(tokens[number])}"
        if abs(chance - row[token]) > 0.02:
            return f"log-probability {chance:.3f} of {_name(token)}, not {row[token]:.3f}"
        if tops is True:
            continue
        best = sorted(row, reverse=True)[:tops]
        if tops and len(top) < tops:
            return f"{len(top)} of {tops} top_logprobs"
        for (one, reported), want in zip(top, best, strict=False):
            if abs(reported - want) > 0.02 or abs(reported - row[one]) > 0.02:
                return f"top_logprobs has {_name(one)} with {reported:.3f}, not {want:.3f}"
    return ""


def _name(token: int) -> str:
    return repr(TOKENS[token]) if 0 <= token < len(TOKENS) else f"token {token}"


def _has_no_chances(answers: Sequence[Answer], asked: Asked) -> str:
    return (
        "log-probabilities that were not requested"
        if answers[0].chances
        else is_greedy(answers, asked)
    )


def _chances(name: str, fields: Mapping[str, Any], **more: Any) -> Parameter:
    return Parameter(
        name,
        (ring({**GREEDY, **fields}, 12),),
        _judge_chances,
        ring(GREEDY, 12),
        _has_no_chances,
        **more,
    )


def _grammar(name: str, form: Mapping[str, Any], is_valid: Callable[[Any], bool]) -> Parameter:
    def judge(answers: Sequence[Answer], asked: Asked) -> str:
        try:
            valid = is_valid(json.loads(answers[0].text))
        except ValueError:
            valid = False
        return "" if valid else f"{answers[0].text[:40]!r} does not follow the format"

    request = Request((f"{RING[0]}{WRITE}",), {**GREEDY, "response_format": form}, 24)
    plain = replace(request, fields=GREEDY)
    return Parameter(name, (request,), judge, plain, is_greedy, endpoints=(CHAT,))


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "f",
            "description": "f",
            "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}},
        },
    }
]


def _tools(
    name: str, prompt: str, more: Mapping[str, Any], judge: Judge, **kinds: Any
) -> Parameter:
    request = Request((f"{RING[0]}{prompt}",), {**GREEDY, "tools": TOOLS, **more}, 24)
    plain = ring(GREEDY, 24)
    ignored = kinds.get("ignored", _is_raw)
    return Parameter(name, (request,), judge, plain, is_greedy, ignored, (CHAT,))


def _is_raw(answers: Sequence[Answer], asked: Asked) -> str:
    """The answer is the model's text, with its calls as text."""
    return is_greedy(answers, asked) or ("calls" if answers[0].calls else "")


def _judge_call(answers: Sequence[Answer], asked: Asked) -> str:
    answer = answers[0]
    calls = [(name, _arguments(text)) for name, text in answer.calls]
    if calls != [("f", {"x": 1})]:
        return f"calls {calls}, text {answer.text[:40]!r}, finish reason {answer.finish}"
    beside = f"text beside the call: {answer.text!r}" if answer.text.strip() else ""
    return ends(answers, "tool_calls", beside)


def _judge_required(answers: Sequence[Answer], asked: Asked) -> str:
    """A call that the tool's schema allows, whatever the model wants to write."""
    called = [(name, _arguments(text)) for name, text in answers[0].calls]
    if [name for name, _ in called] != ["f"] or not isinstance(called[0][1], dict):
        return f"calls {called}, text {answers[0].text[:40]!r}, finish reason {answers[0].finish}"
    return ""


def _arguments(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _judge_unreadable(answers: Sequence[Answer], asked: Asked) -> str:
    """A call that cannot be parsed comes back as text."""
    answer = answers[0]
    if answer.calls or BROKEN not in answer.text:
        return f"calls {answer.calls}, text {answer.text[:40]!r}, finish reason {answer.finish}"
    return ends(answers, "stop", "")


def _has_no_calls(answers: Sequence[Answer], asked: Asked) -> str:
    return f"calls {answers[0].calls}" if answers[0].calls else ""


THOUGHTS = "".join(THOUGHT).strip()


def _judge_reasoning(answers: Sequence[Answer], asked: Asked) -> str:
    """The thinking section is apart from the text."""
    answer = answers[0]
    if answer.text.strip() != THUS.strip() or answer.reasoning.strip() != THOUGHTS:
        return f"text {answer.text[:40]!r}, reasoning {answer.reasoning[:40]!r}"
    return ""


def _is_unparsed(answers: Sequence[Answer], asked: Asked) -> str:
    return "" if answers[0].text.strip() == f"<think> {THOUGHTS}</think>{THUS}" else "parsed"


def _judge_no_thinking(answers: Sequence[Answer], asked: Asked) -> str:
    answer = answers[0]
    if answer.text.strip() != THUS.strip() or answer.reasoning.strip():
        return f"text {answer.text[:40]!r}, reasoning {answer.reasoning[:40]!r}"
    return ""


def _thinks(answers: Sequence[Answer], asked: Asked) -> str:
    return _judge_reasoning(answers, asked) and _is_unparsed(answers, asked)


def _judge_budget(answers: Sequence[Answer], asked: Asked) -> str:
    """At most a few tokens of thinking, then the answer."""
    thought = f"{answers[0].reasoning} {answers[0].text}".split()
    count = sum(f" {word}" in THOUGHT for word in thought)
    if count > 6 or THUS.strip() not in answers[0].text:
        return f"{count} tokens of thinking: text {answers[0].text[:40]!r}"
    return ""


# Servers have one of two switches, and their defaults differ.
_THINK = {"enable_thinking": True, "chat_template_kwargs": {"enable_thinking": True}}


def _thinking(name: str, more: Mapping[str, Any], judge: Judge, ignored: Judge) -> Parameter:
    request = Request((f"{RING[0]}{PONDER}",), {**GREEDY, **more}, 24)
    plain = ring(GREEDY, 24)
    return Parameter(name, (request,), judge, plain, is_greedy, ignored, (CHAT,))


def _judge_usage(answers: Sequence[Answer], asked: Asked) -> str:
    """The counts of tokens; the stop token may count."""
    answer = answers[0]
    want = len(asked.prompt()), len(answer.tokens(asked.language))
    got = answer.prompt_tokens, answer.answer_tokens
    if None in got:
        return "no usage counts"
    ended = answer.finish == "stop"
    if got[0] != want[0] or got[1] not in (want[1], want[1] + ended):
        return f"usage {got[0]} + {got[1]}, not {want[0]} + {want[1]}"
    return is_greedy(answers, asked)


def _has_no_usage(answers: Sequence[Answer], asked: Asked) -> str:
    return "" if answers[0].prompt_tokens is None else "usage counts"


def _judge_end(answers: Sequence[Answer], asked: Asked) -> str:
    """A text that ends with the model's own stop token."""
    return ends(answers, "stop", is_greedy(answers, asked))


def _conversation() -> Request:
    """Context words: every token of the context counts."""
    return Request(("".join(CONTEXT[i] for i in (3, 14, 7, 30, 22, 9)),), GREEDY, 24)


def _cut_conversation() -> Parameter:
    """A kept cache ends where the answer does."""
    stops = [word.strip() for word in CONTEXT[::5]]

    def judge(answers: Sequence[Answer], asked: Asked) -> str:
        def cut(number: int) -> str:
            text = asked.greedy(number)
            ends = [text.index(stop) for stop in stops if stop in text]
            return text[: min(ends)].strip() if ends else text

        return compare(answers, asked, cut)

    request = replace(_conversation(), fields={**GREEDY, "stop": stops})
    contexts = ("solo", "second turn", "third turn", "one by one")
    return Parameter(
        "context, stopped", (request,), judge, ring(WARM), SAMPLED, is_greedy, contexts=contexts
    )


def _model(other: str) -> Parameter:
    """The model's name: another folder answers by its own path."""
    request = ring(GREEDY, 16)
    second = Language(other=True)

    def judge(answers: Sequence[Answer], asked: Asked) -> str:
        there = replace(asked, language=second)
        return compare(answers, asked, lambda n: there.greedy(n))

    return Parameter(
        "model", (request,), judge, request, is_greedy, contexts=("solo", "streamed"), model=other
    )


def parameters(other: str) -> list[Parameter]:
    """The matrix's parameters; ``other``: the folder of another model, empty if there is none."""
    story = Request((f"{RING[0]}{TELL}",), GREEDY, 24)
    everywhere = (CHAT, COMPLETIONS, RESPONSES, MESSAGES)
    one, text = f"{RING[9]}", "".join(RING)
    found = [
        Parameter(
            "context", (_conversation(),), is_greedy, ring(WARM), SAMPLED, endpoints=everywhere
        ),
        Parameter(
            "temperature",
            (ring(GREEDY), ring(WARM), ring({"temperature": 0.005})),
            _judge_temperature,
            ring(WARM),
            SAMPLED,
            _is_one_temperature,
            everywhere,
        ),
        _cut_conversation(),
        _sampler("top_p", {"top_p": 0.3}, range(2), 0, endpoints=everywhere),
        _sampler("top_k", {"top_k": 2}, range(2), 0, endpoints=(CHAT, COMPLETIONS, MESSAGES)),
        _sampler("min_p", {"min_p": 0.7}, range(2), 0),
        _sampler("xtc", {"xtc_probability": 1.0, "xtc_threshold": 0.1}, range(3, 8)),
        _sampler("typical_p", {"typical_p": 0.1}, range(2, 3)),
        Parameter(
            "seed",
            tuple(ring({**WARM, "seed": seed}) for seed in (5, 5, 6)),
            _judge_seed,
            ring(WARM),
            SAMPLED,
        ),
        _penalty("repetition", 1.3),
        _penalty("presence", 1.2),
        _penalty("frequency", 0.62),
        _penalty("repetition", 1.3, 3),
        _penalty("presence", 1.2, 3),
        _penalty("frequency", 0.62, 3),
        _logit_bias(),
        _stop("stop", one, one),
        _stop("stop, several", [RING[40], one], one),
        _stop("stop, split over tokens", [text[28:32]], text[28:32]),
        _limit("max_tokens"),
        _limit("max_completion_tokens"),
        Parameter("n", (ring({**WARM, "n": 2}),), _judge_choices, ring(WARM), _judge_choices_plain),
        _chances("logprobs", {"logprobs": True}, endpoints=(CHAT,)),
        _chances("top_logprobs", {"logprobs": True, "top_logprobs": 4}, endpoints=(CHAT,)),
        _chances("logprobs, a number", {"logprobs": 3}, endpoints=(COMPLETIONS,)),
        _grammar("response_format, schema", _schema({"const": "ba"}), lambda value: value == "ba"),
        _grammar("response_format, object", {"type": "json_object"}, lambda v: isinstance(v, dict)),
        _tools("tools", USE, {}, _judge_call),
        _tools("tools, unreadable call", BREAK, {}, _judge_unreadable, ignored=_nothing),
        _tools(
            "tool_choice none", USE, {"tool_choice": "none"}, _has_no_calls, ignored=_judge_call
        ),
        _tools("tool_choice required", TELL, {"tool_choice": "required"}, _judge_required),
        _thinking("thinking section", _THINK, _judge_reasoning, _is_unparsed),
        _thinking(
            "chat_template_kwargs",
            {"chat_template_kwargs": {"enable_thinking": False}},
            _judge_no_thinking,
            _thinks,
        ),
        _thinking("enable_thinking", {"enable_thinking": False}, _judge_no_thinking, _thinks),
        _thinking("thinking_budget", {"thinking_budget": 3}, _judge_budget, _thinks),
        Parameter(
            "usage",
            (ring(GREEDY, 9),),
            _judge_usage,
            ring(GREEDY),
            is_greedy,
            _has_no_usage,
            everywhere,
            # A stream has usage only if stream_options ask for it.
            ("solo", "joins another", "several at once", "second turn", "third turn", "one by one"),
        ),
        Parameter(
            "stream_options",
            (replace(story, fields={**GREEDY, "stream_options": {"include_usage": True}}),),
            _judge_usage,
            ring(GREEDY),
            is_greedy,
            _has_no_usage,
            stream_only=True,
        ),
        Parameter(
            "stop token", (story,), _judge_end, ring(GREEDY), is_greedy, endpoints=everywhere
        ),
    ]
    return found + ([_model(other)] if other else [])


def _judge_choices_plain(answers: Sequence[Answer], asked: Asked) -> str:
    return "more than one choice" if len(answers[0].texts) != 1 else SAMPLED(answers, asked)


def _nothing(answers: Sequence[Answer], asked: Asked) -> str:
    return "it cannot be ignored"


def _schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "s", "strict": True, "schema": schema}}
