"""Compares two runs of the same tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

# From good to bad. "missing": the test is not in the run.
SEVERITY = ("passed", "xfailed", "xpassed", "skipped", "failed", "error", "crashed", "missing")
BAD = SEVERITY[SEVERITY.index("failed") :]
BROKEN, REPAIRED, OTHER = "broken by the patches", "repaired by the patches", "otherwise different"

Outcomes = Mapping[str, str]
# A test's outcome without the patches and with them.
Pair = tuple[str, str]


def differences(without: Outcomes, with_: Outcomes) -> dict[str, Pair]:
    """The tests whose outcomes differ, in the order of the runs."""
    pairs = {
        test: (without.get(test, "missing"), with_.get(test, "missing"))
        for test in [*without, *with_]
    }
    return {test: pair for test, pair in pairs.items() if pair[0] != pair[1]}


def kind(pair: Pair) -> str:
    """Whether the patches broke or repaired a test, or the outcomes differ otherwise."""
    without, with_ = (outcome in BAD for outcome in pair)
    if with_ and not without:
        return BROKEN
    return REPAIRED if without and not with_ else OTHER


def settle(
    found: Mapping[str, Pair],
    again: Callable[[Iterable[str]], tuple[Outcomes, Outcomes]],
    rounds: int = 5,
) -> tuple[dict[str, Pair], dict[str, Pair]]:
    """Separate real differences from flaky tests.

    Runs the tests again separately, ``rounds`` times without and with the patches. The second
    worst outcome of each side counts, so a single failure in a race does not. Tests that then do
    not differ run twice more, with all tests of their files.

    Args:
        again: runs tests, or files of tests, without and with the patches.

    Returns:
        The differences that persist, and those that do not.
    """
    steady: dict[str, Pair] = {}
    if found:
        steady = _compare_runs(found, [again(found) for _ in range(rounds)])
    if rest := [test for test in found if test not in steady]:
        files = dict.fromkeys(test.partition("::")[0] for test in rest)
        steady |= _compare_runs(rest, [again(files) for _ in range(2)])
    return (
        {test: steady[test] for test in found if test in steady},
        {test: pair for test, pair in found.items() if test not in steady},
    )


def _compare_runs(tests: Iterable[str], runs: list[tuple[Outcomes, Outcomes]]) -> dict[str, Pair]:
    """The tests that differ over several runs, when each side's worst outcome is ignored."""

    def counts(test: str, side: int) -> str:
        seen = (run[side].get(test, "missing") for run in runs)
        return sorted(seen, key=SEVERITY.index)[-2:][0]

    without, with_ = ({test: counts(test, side) for test in tests} for side in (0, 1))
    return differences(without, with_)


def table(without: Outcomes, with_: Outcomes) -> str:
    """Both runs' counts, one line for each outcome."""
    counts = Counter(without.values()), Counter(with_.values())
    lines = [f"{'':<10}{'without':>9}{'with':>9}"]
    lines += [
        f"{outcome:<10}{counts[0][outcome]:>9}{counts[1][outcome]:>9}"
        for outcome in SEVERITY
        if counts[0][outcome] or counts[1][outcome]
    ]
    return "\n".join(lines)
