"""Shrink a red walk: fewer operations, fewer options, smaller numbers."""

import time
from collections.abc import Callable
from dataclasses import replace

from .program import VERBS, Operation, Program

IsRed = Callable[[Program], bool]
# Settings that are identifiers: a smaller number would refer to something else.
NAMES = {"row", "text", "after"}


def shrink(program: Program, is_red: IsRed, seconds: float) -> Program:
    """The smallest program found in this time that is red for the same reason."""
    end = time.monotonic() + seconds

    def in_time(tried: Program) -> bool:
        return time.monotonic() < end and is_red(tried)

    before = None
    while before != program:
        before = program
        for make_smaller in (_fewer_operations, _fewer_options, _smaller_settings):
            program = make_smaller(program, in_time)
    return program


def _fewer_operations(program: Program, is_red: IsRed) -> Program:
    """Remove all operations of one verb, then halves, quarters and so on."""
    for verb in VERBS:
        left = [one for one in program.operations if one.verb != verb]
        smaller = replace(program, operations=tuple(left))
        if smaller != program and is_red(smaller):
            program = smaller
    size = max(1, len(program.operations) // 2)
    while size:
        start = 0
        while start < len(program.operations):
            left = [*program.operations[:start], *program.operations[start + size :]]
            smaller = replace(program, operations=tuple(left))
            if is_red(smaller):
                program = smaller
            else:
                start += size
        size //= 2
    return program


def _smaller_settings(program: Program, is_red: IsRed) -> Program:
    for index, operation in enumerate(program.operations):
        for name in (name for name in operation.settings if name not in NAMES):
            for value in _below(program.operations[index], name):
                settings = {**program.operations[index].settings, name: value}
                changed = Operation(operation.verb, {one: n for one, n in settings.items() if n})
                left, right = program.operations[:index], program.operations[index + 1 :]
                smaller = replace(program, operations=(*left, changed, *right))
                if is_red(smaller):
                    program = smaller
                    break
    return program


def _fewer_options(program: Program, is_red: IsRed) -> Program:
    for name in program.options:
        left = {one: value for one, value in program.options.items() if one != name}
        if is_red(smaller := replace(program, options=left)):
            program = smaller
    return program


def _below(operation: Operation, name: str) -> list[int]:
    """Smaller values to try for a setting, in ascending order."""
    value = operation[name]
    least = int(f"{name}!" in VERBS[operation.verb].split())
    return [n for n in dict.fromkeys((0, 1, 2, 3, value // 2, value - 1)) if least <= n < value]
