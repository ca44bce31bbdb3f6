"""Measures right answers per second of a server under mixed traffic, released and patched in turns.

    python -m benchmarks.goodput 'mlx_lm.server --model {model} --port {port}' [--seconds 240]

A round draws requests as the walks do: plain, streamed, second turns, clients that leave or send
nonsense. Both servers get the same ones, one server after the other, in an order that alternates;
the idle one is stopped with SIGSTOP. The clients share a list, so that none waits while others have
work. Answers are judged as in the lab, after the traffic. The requests have the parameters that the
release honours in single requests. The first round of each number of clients warms up.

A row compares a number of clients: the median of the rounds' ratios, patched to released, with the
interval that holds a median in 95 % of samples (sign test). CPU: right answers per second of the
server's CPU time, which a busy machine changes least. Run it from the
repository's root.
"""

import argparse
import itertools
import math
import os
import signal
import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from mlx_patches.evidence.requests import RIGHT
from mlx_patches.lab.server.client import CHAT
from mlx_patches.lab.server.contexts import Company, solo, take_turns
from mlx_patches.lab.server.measure import starting
from mlx_patches.lab.server.process import each_process
from mlx_patches.lab.server.runner import Lab
from mlx_patches.lab.server.walks import JUDGED, LEAVING, Step, Walker

CLIENTS = (1, 8, 32)
# Seconds between the first requests of two clients: a server's queue of connections is short.
GAP = 0.02


class Round(NamedTuple):
    """One server's figures; latencies in seconds."""

    goodput: float
    cpu: float
    p50: float
    p95: float
    share: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", help="the server's, with {model} and {port}")
    parser.add_argument("--name", help="of the rows; by default the command's first word")
    parser.add_argument("--rounds", type=int, default=40, help="at most, per number of clients")
    parser.add_argument("--seconds", type=float, default=240, help="at most, for all rounds")
    parser.add_argument("--clients", type=int, action="append", help="may be repeated")
    options = parser.parse_args()
    name = options.name or options.command.split()[0]
    everyone = options.clients or CLIENTS
    with ExitStack() as stack:
        labs = [
            stack.enter_context(starting(options.command, patched)) for patched in (False, True)
        ]
        walkers = [Walker(lab) for lab in labs]
        usable = walkers[1].usable = walkers[0].usable
        begun = [memory(lab) for lab in labs]
        print(f"{name}: {len(usable)} parameters: {', '.join(usable)}\n", flush=True)
        print("| server | clients | right per second | CPU | p50 | p95 | released | patched |")
        print(f"|{'---|' * 8}", flush=True)
        for clients in everyone:
            end = time.monotonic() + options.seconds / len(everyone)
            rounds = list(pairs(walkers, clients, options.rounds, end))
            print(row(name, clients, rounds), flush=True)
        ended = [memory(lab) for lab in labs]
    print(
        f"\nMB at start and end: released {begun[0]:.0f}, {ended[0]:.0f}; "
        f"patched {begun[1]:.0f}, {ended[1]:.0f}"
    )


def pairs(
    walkers: Sequence[Walker], clients: int, count: int, end: float
) -> Iterator[tuple[Round, Round]]:
    """Rounds of the released and the patched server, until the time ``end``; at least one."""
    took = 0.0
    for number in range(count + 1):
        begin = time.monotonic()
        if number > 1 and begin + took > end:
            return
        steps = draw(walkers[0], clients, number)
        found: dict[int, Round] = {}
        for patched in (0, 1) if number % 2 else (1, 0):
            with pause(walkers[1 - patched].lab):
                found[patched] = measure(walkers[patched], clients, steps)
        took = time.monotonic() - begin
        if number:
            yield found[0], found[1]


def draw(walker: Walker, clients: int, number: int) -> list[Step]:
    """The requests of a round: at least 24, and 3 per client."""
    drawn = (step for seed in itertools.count(1000 * number) for step in walker.draw(seed))
    known = {*JUDGED, *LEAVING} - {"swap"}  # a swap takes as long as hundreds of requests
    return list(itertools.islice((s for s in drawn if s.action in known), max(24, 3 * clients)))


@contextmanager
def pause(lab: Lab) -> Iterator[None]:
    """Stop a server inside the block: an idle one may poll."""
    os.killpg(lab.process.group, signal.SIGSTOP)
    try:
        yield
    finally:
        os.killpg(lab.process.group, signal.SIGCONT)


def measure(walker: Walker, clients: int, steps: Sequence[Step]) -> Round:
    """Let clients send the requests, then judge the answers."""
    lab, waits = walker.lab, itertools.count()

    def send(step: Step) -> Company | None:
        if step.action not in JUDGED:
            walker._take(step)
            return None
        way = take_turns if step.action == "turn" else solo
        return way(lab.place(CHAT), walker.known[step.parameter], step.action == "stream")

    begin, used = time.monotonic(), cpu(lab)
    with ThreadPoolExecutor(clients, initializer=lambda: time.sleep(GAP * next(waits))) as pool:
        sent = list(pool.map(send, steps))
    seconds, used = time.monotonic() - begin, cpu(lab) - used
    right = [
        lab.judge(CHAT, walker.known[step.parameter], company, False)[0] == RIGHT
        for step, company in zip(steps, sent, strict=True)
        if company
    ]
    latencies = [answer.seconds for company in sent if company for answer in company.answers]
    hundredths = statistics.quantiles(latencies, n=100, method="inclusive")
    p50, p95 = hundredths[49], hundredths[94]
    return Round(
        sum(right) / seconds, sum(right) / max(used, 0.01), p50, p95, statistics.fmean(right)
    )


def memory(lab: Lab) -> float:
    """The resident memory of a server's processes, in MB."""
    pages = sum(int(stat[21]) for _, stat in each_process(lab.process.group))
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def cpu(lab: Lab) -> float:
    """The seconds of CPU time that a server's processes have used."""
    processes = each_process(lab.process.group)
    return sum(int(n) for _, stat in processes for n in stat[11:15]) / os.sysconf("SC_CLK_TCK")


def row(name: str, clients: int, rounds: Sequence[tuple[Round, Round]]) -> str:
    """The table's row for a number of clients."""
    cells = [name, str(clients)]
    for field in Round._fields[:4]:
        ratios = [getattr(b, field) / getattr(a, field) for a, b in rounds if getattr(a, field)]
        cells.append(show(ratios))
    for part in zip(*rounds, strict=True):
        goodput = statistics.median(one.goodput for one in part)
        cells.append(f"{goodput:.1f}/s, {statistics.fmean(one.share for one in part):.1%} right")
    return f"| {' | '.join(cells)} |"


def show(ratios: Sequence[float]) -> str:
    """The median and its interval: all ratios if there are fewer than six."""
    if not ratios:
        return "-"
    ordered, count = sorted(ratios), len(ratios)
    left, chance = 0, 0.5**count
    while chance <= 0.025:
        left += 1
        chance += math.comb(count, left) * 0.5**count
    first = max(left - 1, 0)
    low, high = ordered[first], ordered[-1 - first]
    return f"{statistics.median(ordered):.3f} ({low:.3f} to {high:.3f})"


if __name__ == "__main__":
    main()
