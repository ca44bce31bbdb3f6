"""What two runs of the same tests differ in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

# From good to bad; "missing": the run does not have the test.
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
    """Whose side a difference speaks for."""
    without, with_ = (outcome in BAD for outcome in pair)
    if with_ and not without:
        return BROKEN
    return REPAIRED if without and not with_ else OTHER


def settle(
    found: Mapping[str, Pair],
    again: Callable[[Iterable[str]], tuple[Outcomes, Outcomes]],
    rounds: int = 5,
) -> tuple[dict[str, Pair], dict[str, Pair]]:
    """Tell differences from chance.

    The tests are run again by themselves, some times both ways; of each side counts the second
    worst outcome, so that one failure in a race counts for nothing. Those that do not differ
    then are run twice more among the others of their files.

    Args:
        again: runs tests, or files of tests, both ways.

    Returns:
        The differences that stand, and those that do not.
    """
    steady: dict[str, Pair] = {}
    if found:
        steady = _judged(found, [again(found) for _ in range(rounds)])
    if rest := [test for test in found if test not in steady]:
        files = dict.fromkeys(test.partition("::")[0] for test in rest)
        steady |= _judged(rest, [again(files) for _ in range(2)])
    return (
        {test: steady[test] for test in found if test in steady},
        {test: pair for test, pair in found.items() if test not in steady},
    )


def _judged(tests: Iterable[str], runs: list[tuple[Outcomes, Outcomes]]) -> dict[str, Pair]:
    """The tests that differ over some runs, one of which may be an accident."""

    def counts(test: str, side: int) -> str:
        seen = (run[side].get(test, "missing") for run in runs)
        return sorted(seen, key=SEVERITY.index)[-2:][0]

    without, with_ = ({test: counts(test, side) for test in tests} for side in (0, 1))
    return differences(without, with_)


def table(without: Outcomes, with_: Outcomes) -> str:
    """The counts of both runs, a line an outcome."""
    counts = Counter(without.values()), Counter(with_.values())
    lines = [f"{'':<10}{'without':>9}{'with':>9}"]
    lines += [
        f"{outcome:<10}{counts[0][outcome]:>9}{counts[1][outcome]:>9}"
        for outcome in SEVERITY
        if counts[0][outcome] or counts[1][outcome]
    ]
    return "\n".join(lines)
