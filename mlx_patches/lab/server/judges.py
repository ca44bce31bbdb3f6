"""The judges of answers: each returns the fault of the answers, empty if they are right."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .client import Answer, Request
from .oracle import (
    BROKEN,
    END,
    LADDER,
    RECENT,
    SIGHTS,
    THOUGHT,
    THUS,
    TOKENS,
    WINDOW,
    Language,
    Logits,
    Processor,
    log_softmax,
    penalize,
)

# The end of a text whose rest is not certain.
ANY = "\N{HORIZONTAL ELLIPSIS}"
THOUGHTS = "".join(THOUGHT).strip()


@dataclass
class Sent:
    """The requests that were sent to an endpoint.

    ``sights``: which tokens a server's penalties may count, of which the answer must fit one;
    ``fits``: those that it fits.
    """

    endpoint: str
    language: Language
    requests: Sequence[Request]
    sights: Sequence[str] = SIGHTS
    fits: list[str] = field(default_factory=list)

    def prompt(self, index: int = 0) -> list[int]:
        return self.requests[index].prompt(self.endpoint, self.language)

    def greedy(self, index: int = 0, processor: Processor | None = None) -> str:
        """The greedy text of a request, with ANY at the end if rounding decides the rest."""
        prompt, count = self.prompt(index), self.requests[index].tokens
        tokens, open_ended = self.language.greedy(prompt, count, processor)
        return self.language.decode(tokens).strip() + (ANY if open_ended else "")


def compare(answers: Sequence[Answer], wanted: Callable[[int], str], reason: str = "") -> str:
    """The fault of texts that must be equal, or that of the first one's finish reason."""
    for number, answer in enumerate(answers):
        text, want = answer.text.strip(), wanted(number)
        if want.endswith(ANY):
            want = want[:-1]
            text = text[: len(want)]
        if text != want:
            pairs = enumerate(zip(text, want, strict=False))
            at = next((i for i, (a, b) in pairs if a != b), min(len(text), len(want)))
            part = slice(max(0, at - 12), at + 24)
            return f"{text[part]!r}, not {want[part]!r}, at character {at}"
    return check_finish(answers[0], reason) if reason else ""


def check_finish(answer: Answer, reason: str) -> str:
    return "" if answer.finish == reason else f"finish reason {answer.finish}, not {reason}"


def judge_greedy(answers: Sequence[Answer], sent: Sent, reason: str = "") -> str:
    """The answers are the greedy texts."""
    return compare(answers, sent.greedy, reason)


def judge_whole_text(answers: Sequence[Answer], sent: Sent) -> str:
    """The greedy texts, without a limit."""
    whole = [replace(one, tokens=24) for one in sent.requests]
    return judge_greedy(answers, replace(sent, requests=whole))


def judge_blind(answers: Sequence[Answer], sent: Sent) -> str:
    """The greedy texts, without the pictures."""
    blind = [replace(one, texts=(one.texts[0].rpartition(END)[2],)) for one in sent.requests]
    return judge_greedy(answers, replace(sent, requests=blind))


def judge_other_model(answers: Sequence[Answer], sent: Sent) -> str:
    return judge_greedy(answers, replace(sent, language=Language(other=True)))


def judge_adapted(answers: Sequence[Answer], sent: Sent) -> str:
    return judge_greedy(answers, replace(sent, language=Language(adapted=True)))


def judge_ranks(
    answers: Sequence[Answer], sent: Sent, start: int = 0, end: int = len(LADDER), beyond: int = 1
) -> str:
    """All ranks are in this range, and the largest is beyond a number; default: a sampled text."""
    for number, answer in enumerate(answers):
        tokens = answer.tokens(sent.language)
        ranks = sent.language.ranks(sent.prompt(number), tokens)
        bad = sorted({rank for rank in ranks if not start <= rank < end})
        short = len(ranks) < sent.requests[number].tokens
        if bad or short:
            shown = "a cut answer" if short else f"ranks {bad}"
            return f"{shown}, not {start} to {end - 1}: {answer.text[:40]!r}"
        if max(ranks) <= beyond:
            return f"no rank above {beyond}: the answer is {'cut' if beyond else 'greedy'}"
    return ""


def judge_temperatures(answers: Sequence[Answer], sent: Sent) -> str:
    rules: tuple[Callable[..., str], ...] = (judge_greedy, judge_ranks, judge_greedy)
    for request, answer, judge in zip(sent.requests, answers, rules, strict=False):
        if fault := judge([answer], replace(sent, requests=[request])):
            return f"temperature {request.fields['temperature']}: {fault}"
    return ""


def judge_one_temperature(answers: Sequence[Answer], sent: Sent) -> str:
    """All answers are sampled, or all are greedy: then the temperature is ignored."""
    return judge_ranks(answers, sent) and judge_greedy(answers, sent)


def judge_seeds(answers: Sequence[Answer], sent: Sent) -> str:
    if fault := judge_ranks(answers, sent):
        return fault
    first, again, other = (answer.text for answer in answers)
    if first != again:
        return "the same seed gives two texts"
    return "two seeds give one text" if first == other else ""


def judge_penalty(
    answers: Sequence[Answer], sent: Sent, kind: str, amount: float, size: int = 0
) -> str:
    """The greedy texts after a penalty; ``size``: the number of tokens that it sees."""
    fault = ""
    for sight in sent.sights:
        if size and sight not in (WINDOW, RECENT):
            continue
        process = penalize(kind, amount, sight, size or 20)
        found = compare(answers, lambda n, p=process: sent.greedy(n, p))  # type: ignore[misc]
        if not found:
            sent.fits.append(sight)
        fault = fault or found
    return "" if sent.fits else fault


def judge_whole_penalty(answers: Sequence[Answer], sent: Sent, **penalty: Any) -> str:
    """The greedy texts after a penalty of any size, or without it."""
    return judge_penalty(answers, sent, **penalty) and judge_greedy(answers, sent)


def judge_bias(answers: Sequence[Answer], sent: Sent, token: int, bias: float) -> str:
    def process(row: Logits, prompt: Sequence[int], answer: Sequence[int]) -> Logits:
        row[token] += bias
        return row

    return compare(answers, lambda n: sent.greedy(n, process))


def judge_cut(answers: Sequence[Answer], sent: Sent, stops: Sequence[str], reason: str = "") -> str:
    """The greedy texts up to the first stop string."""

    def cut(number: int) -> str:
        text = sent.greedy(number)
        ends = [text.index(stop) for stop in stops if stop in text]
        return text[: min(ends)].strip() if ends else text

    return compare(answers, cut, reason)


def judge_choices(answers: Sequence[Answer], sent: Sent) -> str:
    texts = answers[0].texts
    if len(texts) != sent.requests[0].fields.get("n", 1):
        return f"{len(texts)} choices"
    parts = [replace(answers[0], texts=[text]) for text in texts]
    one = replace(sent, requests=[sent.requests[0]] * len(parts))
    if fault := judge_ranks(parts, one):
        return fault
    return "both choices are equal" if len(set(texts)) < len(texts) else ""


def judge_one_choice(answers: Sequence[Answer], sent: Sent) -> str:
    return "more than one choice" if len(answers[0].texts) != 1 else judge_ranks(answers, sent)


def judge_chances(answers: Sequence[Answer], sent: Sent, tops: int = 0) -> str:
    """Log-probabilities: those of the answer's tokens, and lists of the most likely, best first."""
    answer = answers[0]
    if fault := judge_greedy(answers, sent):
        return fault
    if not answer.chances:
        return "no log-probabilities"
    tokens, prompt = answer.tokens(sent.language), sent.prompt()
    if len(answer.chances) != len(tokens):
        return f"{len(answer.chances)} log-probabilities for {len(tokens)} tokens"
    for number, (token, chance, top) in enumerate(answer.chances):
        row = log_softmax(sent.language.logits([*prompt, *tokens[:number]]))
        if token != tokens[number]:
            return f"the log-probability of {_name(token)}, not of {_name(tokens[number])}"
        if abs(chance - row[token]) > 0.02:
            return f"log-probability {chance:.3f} of {_name(token)}, not {row[token]:.3f}"
        if len(top) < tops:
            return f"{len(top)} of {tops} top_logprobs"
        for (one, reported), want in zip(top, sorted(row, reverse=True)[:tops], strict=False):
            if abs(reported - want) > 0.02 or abs(reported - row[one]) > 0.02:
                return f"top_logprobs has {_name(one)} with {reported:.3f}, not {want:.3f}"
    return ""


def _name(token: int) -> str:
    return repr(TOKENS[token]) if 0 <= token < len(TOKENS) else f"token {token}"


def judge_no_chances(answers: Sequence[Answer], sent: Sent) -> str:
    if answers[0].chances:
        return "log-probabilities that were not requested"
    return judge_greedy(answers, sent)


def judge_format(answers: Sequence[Answer], sent: Sent, only: Any = None) -> str:
    """JSON: this value only, or any object."""
    found, text = _parse(answers[0].text), answers[0].text
    valid = found == only if only else isinstance(found, dict)
    return "" if valid else f"{text[:40]!r} does not follow the format"


def _parse(text: str, default: Any = None) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return default


def _calls(answer: Answer) -> list[tuple[str, Any]]:
    return [(name, _parse(text, text)) for name, text in answer.calls]


def judge_call(answers: Sequence[Answer], sent: Sent) -> str:
    answer = answers[0]
    if _calls(answer) != [("f", {"x": 1})]:
        return _describe(answer, _calls(answer))
    if answer.text.strip():
        return f"text beside the call: {answer.text!r}"
    return check_finish(answer, "tool_calls")


def judge_any_call(answers: Sequence[Answer], sent: Sent) -> str:
    """A call that the tool's schema allows, whatever the model wants to write."""
    calls = _calls(answers[0])
    right = [(name, type(arguments)) for name, arguments in calls] == [("f", dict)]
    return "" if right else _describe(answers[0], calls)


def judge_unreadable_call(answers: Sequence[Answer], sent: Sent) -> str:
    """A call that cannot be parsed comes back as text."""
    answer = answers[0]
    if answer.calls or BROKEN not in answer.text:
        return _describe(answer, answer.calls)
    return check_finish(answer, "stop")


def _describe(answer: Answer, calls: Sequence[tuple[str, Any]]) -> str:
    return f"calls {calls}, text {answer.text[:40]!r}, finish reason {answer.finish}"


def judge_no_call(answers: Sequence[Answer], sent: Sent) -> str:
    return f"calls {answers[0].calls}" if answers[0].calls else ""


def judge_raw(answers: Sequence[Answer], sent: Sent) -> str:
    """The answer is the model's text, with its calls as text."""
    return judge_greedy(answers, sent) or ("calls" if answers[0].calls else "")


def judge_thought(answers: Sequence[Answer], sent: Sent, reasoning: bool = False) -> str:
    """The thinking section is apart from the text, or there is none."""
    answer = answers[0]
    got = answer.text.strip(), answer.reasoning.strip()
    if got != (THUS.strip(), THOUGHTS if reasoning else ""):
        return f"text {answer.text[:40]!r}, reasoning {answer.reasoning[:40]!r}"
    return ""


def judge_unparsed_thought(answers: Sequence[Answer], sent: Sent) -> str:
    return "" if answers[0].text.strip() == f"<think> {THOUGHTS}</think>{THUS}" else "parsed"


def judge_any_thought(answers: Sequence[Answer], sent: Sent) -> str:
    return judge_thought(answers, sent, True) and judge_unparsed_thought(answers, sent)


def judge_short_thought(answers: Sequence[Answer], sent: Sent) -> str:
    """At most a few tokens of thinking, then the answer."""
    thought = f"{answers[0].reasoning} {answers[0].text}".split()
    count = sum(f" {word}" in THOUGHT for word in thought)
    if count > 6 or THUS.strip() not in answers[0].text:
        return f"{count} tokens of thinking: text {answers[0].text[:40]!r}"
    return ""


def judge_usage(answers: Sequence[Answer], sent: Sent) -> str:
    """The counts of tokens; the stop token may count."""
    answer = answers[0]
    want = len(sent.prompt()), len(answer.tokens(sent.language))
    got = answer.prompt_tokens, answer.answer_tokens
    if None in got:
        return "no usage counts"
    if got[0] != want[0] or got[1] not in (want[1], want[1] + (answer.finish == "stop")):
        return f"usage {got[0]} + {got[1]}, not {want[0]} + {want[1]}"
    return judge_greedy(answers, sent)


def judge_no_usage(answers: Sequence[Answer], sent: Sent) -> str:
    return "" if answers[0].prompt_tokens is None else "usage counts"


def judge_never(answers: Sequence[Answer], sent: Sent) -> str:
    return "it cannot be ignored"
