"""The scenario ``stops``: a release's server ends its answer at the first stop string.

The tiny model generates pairs of letters, so that parts of its answer are tokenized in every way,
mostly differently from the stop string itself.
"""

import itertools
from collections.abc import Iterator

from ..evidence.words import GREEN, RED
from . import Cell
from .served import Ask, serving

PROMPT, COUNT = "abc hag, fa", 12
# Stop strings are the substrings of an answer with these lengths that begin before this index.
LENGTHS, STARTS = (1, 2, 3, 4), 10
NOWHERE = ",.!"


def cells(distribution: str, patched: bool) -> Iterator[tuple[str, Cell]]:
    """A name and a cell for complete answers, and for streamed ones."""
    with serving(distribution, patched) as ask:
        for name, stream in (("at once", False), ("streamed", True)):
            yield name, compare_stops(ask, stream)


def compare_stops(ask: Ask, stream: bool) -> Cell:
    """Red if an answer with stop strings is not the full answer up to the first of them."""

    def answer(*stops: str) -> tuple[str, str]:
        sent = {"stop": list(stops)} if stops else {}
        return ask(PROMPT, temperature=0, max_tokens=COUNT, stream=stream, **sent)

    whole, _ = answer()
    wrong, tried = [], list(stop_strings(whole))
    for stops in tried:
        places = [place for stop in stops if (place := whole.find(stop)) >= 0]
        wanted = (whole[: min(places)], "stop") if places else (whole, "length")
        if (got := answer(*stops)) != wanted:
            wrong.append(f"stop {stops!r} ends {whole!r} as {got!r} instead of {wanted!r}")
    if wrong:
        return Cell(RED, f"{len(wrong)} of {len(tried)} requests: {wrong[0]}", float(len(wrong)))
    return Cell(GREEN, f"{len(tried)} requests", 0.0)


def stop_strings(whole: str) -> Iterator[tuple[str, ...]]:
    for length, start in itertools.product(LENGTHS, range(STARTS)):
        yield (whole[start : start + length],)
    yield (whole[-2:],)
    yield (NOWHERE,)
    yield (whole[6:9], whole[4:6], NOWHERE)
    # Two of them begin at the same index.
    yield (whole[2:7], whole[2:4])
