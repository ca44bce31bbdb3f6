"""Compares requests of vllm-mlx's scheduler in a batch with single requests; settings differ."""

from typing import Any

from ....probes.kit import Result, Target, require, require_names
from ....probes.vllm_scheduler import Server, build_llama

_PROMPT = [3, 7, 11]
_TOKENS = 12
_HOT: dict[str, Any] = {"temperature": 2.0, "top_p": 1.0}
# The settings of a greedy request, and those of the one whose batch it joins.
_PAIRS: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({"temperature": 0.0}, _HOT),
    ({**_HOT, "top_k": 1}, _HOT),
    ({**_HOT, "min_p": 1.0}, _HOT),
    ({**_HOT, "top_k": 1}, {"temperature": 0.0}),
)
_PENALTY = {"temperature": 0.0, "presence_penalty": 1000.0}


def probe(target: Target) -> Result:
    """Red if a request's tokens differ in a batch, or if it ignores a setting."""
    require(target)
    model = build_llama()
    server = Server(model)
    server.add(list(_PROMPT), max_tokens=1)
    server.scheduler.step()
    require_names(server.scheduler.batch_generator, "_prompt_batch")
    greedy = generate(model, [{"temperature": 0.0}])[0]
    for settings, first in _PAIRS:
        for sent in ([settings], [first, settings], [first, settings, first]):
            answer = generate(model, sent)[sent.index(settings)]
            if answer != greedy:
                return Result(True, f"{settings} in {sent}: {answer}, greedy {greedy}")
    answers = generate(model, [{"temperature": 0.0}, _HOT, _HOT])
    if answers[1] == greedy or answers[1] == answers[2]:
        return Result(True, f"{_HOT} beside a greedy request: {answers[1:]}")
    penalized = generate(model, [_PENALTY])[0]
    if len({*penalized, *_PROMPT}) < _TOKENS + len({*_PROMPT}):
        return Result(True, f"{_PENALTY} repeats tokens: {penalized}")
    return Result(False, "each request is sampled with its own settings")


def generate(model: Any, sent: list[dict[str, Any]]) -> list[list[int]]:
    """The tokens of requests, each of which joins after a step of the earlier ones."""
    server = Server(model)
    answers: dict[str, list[int]] = {}
    waiting = list(sent)
    while waiting or server.scheduler.has_requests():
        if waiting:
            longer = _TOKENS * (1 + len(waiting))
            answers[server.add(list(_PROMPT), max_tokens=longer, **waiting.pop(0))] = []
        for output in server.scheduler.step().outputs:
            answers[output.request_id] += output.new_token_ids
    return [answer[:_TOKENS] for answer in answers.values()]
