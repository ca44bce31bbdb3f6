"""Run the walks of one family: ``python -m mlx_patches.lab.walks.child FAMILY``.

Prints a JSON line before and after each walk, which identifies the walk of a crash or a hang.
"""

import argparse
import contextlib
import itertools
import json
import sys
import time
from collections.abc import Iterator
from typing import Any

from ...evidence.results import BrokenEnvironment, NotApplicable, find_fault
from ...evidence.words import INSENSITIVE, NOT_APPLICABLE, NOT_BUILT, NOT_RUN
from .. import Family, LabModel, NotBuilt
from ..child import apply, build_family, device, first_failure
from . import program as programs
from .engines import kinds
from .program import Program
from .shrink import shrink
from .walk import reason, run

# How many red walks are shrunk; the time limit is a PART of the run, from LEAST to MOST seconds.
SHRUNK, PART, LEAST, MOST = 3, 1 / 3, 5.0, 30.0


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m mlx_patches.lab.walks.child")
    parser.add_argument("family", help="DISTRIBUTION:NAME")
    parser.add_argument("--patched", action="store_true", help="apply the patches first")
    parser.add_argument("--every-patch", action="store_true", help="not only the model's")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0, help="the first walk's")
    parser.add_argument("--replay", metavar="LINE", help="only this walk")
    options = parser.parse_args(argv)
    out = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
        try:
            for event in walks(options):
                print(json.dumps(event), file=out, flush=True)
        except BrokenEnvironment as fault:
            for event in ({"verdict": NOT_RUN, "detail": str(fault)}, {"over": True}):
                print(json.dumps(event), file=out, flush=True)


def walks(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    if options.patched:
        apply(options.every_patch)
    try:
        model, blunt = build_family(Family(*options.family.split(":", 1)))
        may = kinds(model)
    except (NotBuilt, NotApplicable) as why:
        if fault := find_fault(why):
            raise BrokenEnvironment(fault) from why
        verdict = NOT_BUILT if isinstance(why, NotBuilt) else NOT_APPLICABLE
        yield {"verdict": verdict, "detail": str(why)}
        yield {"over": True}
        return
    yield {"device": device()} | ({"verdict": INSENSITIVE, "detail": blunt} if blunt else {})
    if options.replay:
        yield {"walk": 0, "line": options.replay}
        yield _result(model, programs.parse(options.replay))
        yield {"over": True}
    else:
        yield from _walks(options, model, may)


def _walks(
    options: argparse.Namespace, model: LabModel, may: list[frozenset[str]]
) -> Iterator[dict[str, Any]]:
    end = time.monotonic() + options.seconds
    known: set[str] = set()
    for seed in itertools.count(options.seed):
        if time.monotonic() >= end:
            break
        program = programs.draw(options.family, seed, may, model.window or 8)
        yield {"walk": seed, "line": str(program)}
        result = _result(model, program)
        yield result
        # A failed patch is no longer in effect: the next walk needs a new process.
        if options.patched and first_failure():
            return
        wanted = reason(result["failure"]) if result.get("failure") else ""
        if wanted and wanted not in known and len(known) < SHRUNK:
            known.add(wanted)
            seconds = min(MOST, max(LEAST, options.seconds * PART))
            yield from _smaller(model, program, wanted, seconds)
    yield {"over": True}


def _smaller(
    model: LabModel, program: Program, wanted: str, seconds: float
) -> Iterator[dict[str, Any]]:
    def is_red(tried: Program) -> bool:
        with contextlib.suppress(NotApplicable):
            return wanted in map(reason, run(model, tried))
        return False

    small = shrink(program, is_red, seconds)
    failure = next((one for one in run(model, small) if reason(one) == wanted), "")
    if failure:
        yield {"small": str(small), "failure": failure}


def _result(model: LabModel, program: Program) -> dict[str, Any]:
    try:
        failures = run(model, program)
    except NotApplicable as refusal:
        return {"refused": str(refusal)}
    return {"failure": next(iter(failures), "") or first_failure(), "sequences": program.sequences}


if __name__ == "__main__":
    main()
