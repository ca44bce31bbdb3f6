"""The server lab: a correct server is right everywhere, and every planted fault is seen."""

from __future__ import annotations

import pytest

from mlx_patches.lab.server.parameters import parameters
from mlx_patches.lab.server.process import Process
from mlx_patches.lab.server.runner import Lab
from mlx_patches.evidence.requests import ABSENT, IGNORED, RIGHT, WRONG

from .toy_server import OTHER, serving

NAMES = [one.name for one in parameters(OTHER)]


def measure(toy, *only):
    lab = Lab(Process(toy.url, "toy"), None, OTHER)
    return [cell for cell, _ in lab.cells(only)]


def found(cells, endpoint="chat"):
    """The contexts that are not right, by verdict."""
    bad: dict[str, set[str]] = {}
    for cell in cells:
        if cell.endpoint == endpoint and cell.verdict not in (RIGHT, ABSENT):
            bad.setdefault(cell.verdict, set()).add(cell.context)
    return bad


def test_correct_server_is_right_everywhere():
    with serving() as toy:
        cells = measure(toy)
    assert [cell for cell in cells if cell.verdict not in (RIGHT, ABSENT)] == []
    assert {cell.parameter for cell in cells if cell.verdict == RIGHT} == set(NAMES)


# A dropped field, and the parameter of the matrix that shows it.
DROPPED = {
    **{name: name for name in ("temperature", "top_p", "top_k", "min_p", "typical_p", "seed", "n")},
    **{f"{kind}_penalty": f"{kind}_penalty" for kind in ("repetition", "presence", "frequency")},
    "xtc_probability": "xtc",
    "repetition_context_size": "repetition_context_size",
    "presence_context_size": "presence_context_size",
    "frequency_context_size": "frequency_context_size",
    "logit_bias": "logit_bias",
    "stop": "stop, several",
    "max_tokens": "max_tokens",
    "max_completion_tokens": "max_completion_tokens",
    "logprobs": "logprobs",
    "response_format": "response_format, schema",
    "tools": "tools",
    "chat_template_kwargs": "chat_template_kwargs",
    "enable_thinking": "enable_thinking",
    "thinking_budget": "thinking_budget",
    "stream_options": "stream_options",
    "model": "model",
}


@pytest.mark.parametrize("field", DROPPED)
def test_dropped_parameter_is_ignored(field):
    name = DROPPED[field]
    with serving(("drop", field)) as toy:
        cells = [cell for cell in measure(toy, name) if cell.endpoint == "chat"]
    assert {cell.verdict for cell in cells} == {IGNORED}


SPOILED = {
    "usage": "usage",
    "stop token": "stop token",
    "split stops": "stop, split over tokens",
    "thinking": "thinking section",
    "lost call": "tools, unreadable call",
    "finish reason": "max_tokens",
    "shifted chances": "logprobs",
    "unsorted tops": "top_logprobs",
}


@pytest.mark.parametrize("fault", SPOILED)
def test_spoiled_answer_is_seen(fault):
    with serving((fault, "")) as toy:
        bad = found(measure(toy, SPOILED[fault]))
    assert "solo" in set().union(*bad.values())


# A fault in company, its parameter, and the contexts that show it.
COMPANY = {
    "first rules": {"joins another"},
    "last rules": {"joined by another"},
    "crowd": {"several at once"},
    "streamed": {"streamed"},
    "turns": {"second turn", "third turn"},
    "later turns": {"third turn"},
    "seeded": {"one by one"},
    "shaken": {"after others left"},
}


@pytest.mark.parametrize("fault", COMPANY)
@pytest.mark.parametrize("name", ["temperature", "top_k", "logit_bias"])
def test_fault_in_company_is_seen(fault, name):
    with serving((fault, name)) as toy:
        bad = found(measure(toy, name))
    assert COMPANY[fault] <= bad.get(WRONG, set())
    assert "solo" not in bad.get(WRONG, set())


@pytest.mark.parametrize(
    ("fault", "name", "contexts"),
    [
        ("kept cache", "context", {"second turn", "third turn", "one by one"}),
        ("prefix", "repetition_penalty", {"second turn", "one by one"}),
        ("swap", "min_p", {"after a model swap"}),
    ],
)
def test_fault_of_a_kept_state_is_seen(fault, name, contexts):
    with serving((fault, "")) as toy:
        bad = found(measure(toy, name))
    assert contexts <= bad[WRONG]
    assert "solo" not in bad[WRONG]
