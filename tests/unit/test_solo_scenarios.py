import measure_solo
import pytest

from mlx_patches.lab import Cell, draws, release_scenarios, stops
from mlx_patches.probes import NotApplicable

FREE, MORE, FIRST, OTHER = [1, 2], [3, 4], [5, 6], [7, 8]


@pytest.mark.parametrize(
    ("drawn", "detail"),
    [
        ([FREE, MORE, FIRST, FIRST, OTHER], ""),
        ([[1, 1], MORE, FIRST, FIRST, OTHER], "all tokens are one token"),
        ([FREE, FREE, FIRST, FIRST, OTHER], "two draws without a seed are equal"),
        ([FREE, MORE, FIRST, MORE, OTHER], "two draws with one seed differ"),
        ([FREE, MORE, FIRST, FIRST, FIRST], "two seeds draw the same"),
        (ValueError("no"), "ValueError: no"),
    ],
)
def test_draws_are_judged(drawn, detail):
    if isinstance(drawn, Exception):

        def raises(seed):
            raise drawn

        drawn = draws.five(raises)
    cell = draws.compare_draws(drawn)
    assert cell.verdict == ("red" if detail else "green")
    assert cell.detail.startswith(detail)


@pytest.mark.parametrize(
    ("yielded", "verdict", "detail"),
    [
        ([("a", "green"), ("b", "red"), ("c", "red")], "red", "2 of 3 cases: b, c"),
        ([("a", "green"), ("b", "n/a")], "green", "1 of 2 cases"),
        (NotApplicable("no such thing"), "n/a", "no such thing"),
        (ValueError("broken"), "red", "ValueError: broken"),
    ],
)
def test_release_scenario_has_worst_cell(yielded, verdict, detail, monkeypatch):
    def cells(distribution, patched):
        if isinstance(yielded, Exception):
            raise yielded
        yield from ((name, Cell(result)) for name, result in yielded)

    monkeypatch.setitem(release_scenarios.RELEASE_SCENARIOS, "streamed", cells)
    *cases, (name, cell) = release_scenarios.cells("streamed", "mlx-lm", False)
    assert [one for one, _ in cases] == (
        [] if isinstance(yielded, Exception) else [f"streamed:{one}" for one, _ in yielded]
    )
    assert (name, cell.verdict) == ("streamed", verdict)
    assert cell.detail.startswith(detail)


WHOLE = "abcabdabeabfabgabhabiabjabk"


def server(whole, late=0, reason="stop"):
    """A server that ends its answer a few characters after a stop string, or before it."""

    def ask(prompt, stop=(), **fields):
        places = [whole.find(one) for one in stop if one in whole]
        return (whole[: min(places) + late], reason) if places else (whole, "length")

    return ask


@pytest.mark.parametrize(
    ("ask", "verdict"),
    [
        (server(WHOLE), "green"),
        (server(WHOLE, late=1), "red"),
        (server(WHOLE, reason="length"), "red"),
        (lambda prompt, **fields: (WHOLE, "length"), "red"),
    ],
)
def test_stops_are_judged(ask, verdict):
    assert stops.compare_stops(ask, stream=False).verdict == verdict


def rows(**verdicts):
    own = {**verdicts, "unbuilt": "not-built"}
    return [
        {"scenario": "saved", "family": name, "verdict": verdict, "detail": f"{name} {verdict}"}
        for name, verdict in own.items()
    ]


def test_evidence_counts():
    found = {}
    measure_solo.add(found, "without", ["saved"], rows(a="green", b="red", c="red", d="n/a"))
    measure_solo.add(found, "with", ["saved"], rows(a="green", b="green", c="red", d="n/a"))
    assert measure_solo.count_results(found, "saved") == "1/1/1"
    assert found["details_with"] == {"saved": {"c": "c red"}}
    for part in measure_solo.PARTS:
        measure_solo.add(found, part, ["draws"], [])
    assert measure_solo.count_results(found, "draws") == "n/a"
    assert measure_solo.count_results(found, "streamed") == "-"
