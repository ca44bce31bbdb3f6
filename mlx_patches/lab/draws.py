"""The scenario ``draws``: sampling in a thread is random, and reproducible with a seed.

Servers do not sample in the thread that imported the release.
"""

import importlib
import inspect
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from ..core.arrays import mx
from ..core.packages import package_of
from ..evidence.results import NotApplicable
from ..evidence.words import GREEN, RED
from . import Cell, engine
from .served import Ask, serving
from .threads import in_a_thread

# The distribution is nearly flat, so two correct draws of COUNT tokens are hardly ever equal.
TOKENS, COUNT = 64, 24
SETTINGS: dict[str, dict[str, Any]] = {
    "temperature": {},
    "top_p": {"top_p": 0.9},
    "min_p": {"min_p": 0.1},
    "top_k": {"top_k": 32},
    "xtc": {"xtc_probability": 0.5, "xtc_threshold": 0.01},
    "typical_p": {"typical_p": 0.9},
    "top_n_sigma": {"top_n_sigma": 1.5},
    "p_less": {"p_less": True},
}
PROMPT = "abc hag, fa"


def cells(distribution: str, patched: bool) -> Iterator[tuple[str, Cell]]:
    generate = importlib.import_module(f"{package_of(distribution)}.generate")
    make = getattr(generate, "make_sampler", None)
    if make is None:
        raise NotApplicable("the release has no make_sampler")
    for name, options in SETTINGS.items():
        if options.keys() <= inspect.signature(make).parameters.keys():
            yield name, compare_draws(five(partial(draw, make, options)))
    try:
        with serving(distribution, patched) as ask:
            yield "server", compare_draws(five(partial(answer, ask)))
    except Exception as error:
        yield "server", engine.judge_error(error)


def five(drawn: Callable[[int | None], Any]) -> Any:
    """Two unseeded draws, two with one seed, one with another; or the exception raised."""
    return in_a_thread(lambda: [drawn(seed) for seed in (None, None, 1, 1, 2)])


def compare_draws(drawn: Any) -> Cell:
    """Red if draws that should differ are equal, or the reverse; see ``five``."""
    if isinstance(drawn, Exception):
        return engine.judge_error(drawn)
    free, more, first, again, other = drawn
    wrong = [
        fault
        for fault, is_wrong in (
            ("all tokens are one token", len(set(free)) == 1),
            ("two draws without a seed are equal", free == more),
            ("two draws with one seed differ", first != again),
            ("two seeds draw the same", first == other),
        )
        if is_wrong
    ]
    return Cell(RED, "; ".join(wrong)) if wrong else Cell(GREEN, "random, and its seeds hold")


def draw(make: Callable[..., Any], options: dict[str, Any], seed: int | None) -> list[int]:
    if seed is not None:
        mx.random.seed(seed)
    sampler, logits = make(temp=1.0, **options), mx.arange(TOKENS)[None] / TOKENS
    logprobs = logits - mx.logsumexp(logits)
    return [int(sampler(logprobs).item()) for _ in range(COUNT)]


def answer(ask: Ask, seed: int | None) -> str:
    sent = {} if seed is None else {"seed": seed}
    return ask(PROMPT, temperature=1.0, max_tokens=COUNT, **sent)[0]
