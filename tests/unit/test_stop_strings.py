"""``cut`` against its definition, over random texts, stop strings and cuts into tokens."""

import random
from dataclasses import dataclass, replace

import pytest

from mlx_patches.patches._shared.stop_strings import StopStrings, cut_at_stops


@dataclass(frozen=True)
class Response:
    text: str
    finish_reason: str | None = None
    state: str = ""


def expect(responses, stops):
    """The expected responses, each with the number of responses read by then."""
    held = []
    for number, response in enumerate(responses, 1):
        if held and held[-1].state != response.state:
            yield from ((one, number) for one in held)
            held = []
        held.append(response)
        text = "".join(one.text for one in held)
        places = [text.find(stop) for stop in stops if stop in text]
        if places:
            place = min(places)
            for one in held:
                if place < len(one.text):
                    yield replace(one, text=one.text[:place], finish_reason="stop"), number
                    return
                place -= len(one.text)
                yield one, number
        begun = [
            size for stop in stops for size in range(1, len(stop)) if text.endswith(stop[:size])
        ]
        left = 0 if response.finish_reason else max(begun, default=0)
        while held and len(text) - len(held[0].text) >= left:
            text = text[len(held[0].text) :]
            yield held.pop(0), number
    yield from ((one, number) for one in held)


def cut(responses, stops):
    read = 0

    def count():
        nonlocal read
        for response in responses:
            read += 1
            yield response

    for response in cut_at_stops(count(), stops, lambda stop: None):
        yield response, read


@pytest.mark.parametrize(
    "alphabet", ["ab", "aé\ud83d\ude00\U0001f600", "abcdefgh"], ids=["few", "unicode", "many"]
)
def test_cut_equals_definition(alphabet):
    chance = random.Random(7)

    def word(least, most):
        return "".join(chance.choices(alphabet, k=chance.randint(least, most)))

    for _ in range(3000):
        stops = [word(1, 6) for _ in range(chance.randint(1, 5))]
        responses = [
            Response(word(0, 4), chance.choice([None] * 20 + ["length"]), chance.choice("nnnnnnnr"))
            for _ in range(chance.randint(0, 10))
        ]
        assert list(cut(responses, stops)) == list(expect(responses, stops)), (responses, stops)


def test_beginnings_are_read_lazily_and_once():
    class Counted(str):
        read = 0

        def __getitem__(self, place):
            Counted.read += 1
            return super().__getitem__(place)

    stops = StopStrings([Counted("x" * 10**6)])
    begun = stops.nothing
    for letter in "xxxyxx":
        begun = begun.next.get(letter) or stops.advance(begun, letter)
    assert begun.size == 2
    assert Counted.read < 20

    stops = StopStrings([f"aaa{number}" for number in range(5000)])
    begun = stops.nothing
    for letter in "aaaaaaaa":
        begun = begun.next.get(letter) or stops.advance(begun, letter)
    assert (begun.size, begun.complete, begun.words) == (3, 0, (0, 5000))
