"""Measures right answers per second of a server under mixed traffic, released and patched in turns.

    python benchmarks/goodput.py 'mlx_lm.server --model {model} --port {port}' --rounds 10

Clients send the requests of the walks one after the other: plain, streamed, second turns. Some
leave, or send nonsense. Answers are judged as in the lab, after each round. The requests have the
parameters that the release honours in single requests. Both servers run all the time, and one of
them is idle. Ratios are patched to released, of the same round: median, least, largest.
"""

import argparse
import os
import random
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from mlx_patches.evidence.requests import RIGHT
from mlx_patches.lab.server.client import CHAT
from mlx_patches.lab.server.contexts import second_turn, solo
from mlx_patches.lab.server.measure import prepare
from mlx_patches.lab.server.runner import Lab
from mlx_patches.lab.server.walks import JUDGED, LEAVING, Step, Walker

CLIENTS = (1, 8, 32)
# Seconds between the starts of two clients.
GAP = 0.02


class Round(NamedTuple):
    """The traffic of some clients: right answers per second, their share, latencies."""

    goodput: float
    share: float
    p50: float
    p95: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", help="the server's, with {model} and {port}")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=4, help="of traffic, per round")
    options = parser.parse_args()
    with ExitStack() as stack:
        labs = []
        for patched in (False, True):
            start, other = stack.enter_context(prepare(options.command, patched))
            labs.append(Lab(start(), start, other, patched))
        usable = Walker(labs[0]).usable
        Walker(labs[1])  # as warm as the other
        print(f"{len(usable)} parameters: {', '.join(usable)}", flush=True)
        begin = [memory(lab.process.group) for lab in labs]
        for clients in CLIENTS:
            rounds: list[list[Round]] = [[], []]
            for number in range(options.rounds):
                for patched in (0, 1) if number % 2 == 0 else (1, 0):
                    found = measure(labs[patched], usable, clients, options.seconds, number)
                    rounds[patched].append(found)
            show(clients, rounds)
        for lab, before in zip(labs, begin, strict=True):
            print(f"{word(lab.patched)}: {before:.0f} to {memory(lab.process.group):.0f} MB")


def measure(lab: Lab, usable: list[str], clients: int, seconds: float, seed: int) -> Round:
    """Let clients send requests for some seconds; all wait for their last answer."""
    known = {one.name: one for one in lab.everything}
    begin = time.monotonic()

    def send(client: int) -> list[tuple]:
        draw, sent = random.Random(f"{seed} {clients} {client}"), []
        actions = JUDGED | {name: n for name, n in LEAVING.items() if name != "swap"}
        time.sleep(client * GAP)  # a server's queue of new connections is short
        while time.monotonic() < begin + seconds:
            (action,) = draw.choices([*actions], [*actions.values()])
            parameter = known[draw.choice(usable)]
            if action in JUDGED:
                way = second_turn if action == "turn" else solo
                company = way(lab.place(CHAT), parameter, action == "stream")
                sent.append((parameter, company))
            else:
                walker._take(Step(client, action, parameter.name))
        return sent

    walker = Walker.__new__(Walker)
    walker.lab, walker.known = lab, known
    with ThreadPoolExecutor(clients) as pool:
        sent = [one for list_ in pool.map(send, range(clients)) for one in list_]
    elapsed = time.monotonic() - begin
    right = [lab.judge(CHAT, parameter, company, False)[0] == RIGHT for parameter, company in sent]
    latencies = sorted(answer.seconds for _, company in sent for answer in company.answers)
    return Round(
        sum(right) / elapsed,
        sum(right) / len(right),
        *(latencies[int(share * (len(latencies) - 1))] for share in (0.5, 0.95)),
    )


def memory(session: int) -> float:
    """The resident memory of a server's processes, in MB."""
    pages = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if int((folder / "stat").read_text().rpartition(")")[2].split()[3]) == session:
                pages += int((folder / "statm").read_text().split()[1])
        except OSError:  # the process has ended meanwhile
            continue
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def show(clients: int, rounds: list[list[Round]]) -> None:
    """Print the results of a number of clients."""
    columns = []
    for name in ("goodput", "p50", "p95"):
        pairs = zip(*([getattr(one, name) for one in part] for part in rounds), strict=True)
        ratios = [patched / released for released, patched in pairs if released]
        middle = statistics.median(ratios)
        columns.append(f"{name} {middle:.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
    for patched, part in enumerate(rounds):
        goodput = statistics.median(one.goodput for one in part)
        share = statistics.mean(one.share for one in part)
        columns.append(f"{word(patched)} {goodput:.1f} right per second, {share:.1%} right")
    print(f"{clients:2} clients: {'; '.join(columns)}", flush=True)


def word(patched: int) -> str:
    return "patched" if patched else "released"


if __name__ == "__main__":
    main()
