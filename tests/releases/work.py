"""How much work a call does: lines run and bytes allocated, without a clock."""

import gc
import sys
import threading
import tracemalloc
from collections.abc import Callable
from typing import Any, NamedTuple


class Work(NamedTuple):
    """The cost of a call: lines run, bytes allocated, and the peak of live bytes."""

    lines: int
    allocated: int
    held: int


def measure(call: Callable[[], Any]) -> Work:
    """The work of a call in this thread; the errors that a server would answer are results."""
    lines = allocated = held = 0
    base = last = 0

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal lines, allocated, held, last
        now, peak = tracemalloc.get_traced_memory()
        allocated += peak - last
        held = max(held, peak - base)
        if event == "line":
            lines += 1
        tracemalloc.reset_peak()
        last = now
        return trace

    gc.disable()
    before = sys.gettrace()
    tracemalloc.start()
    try:
        base = last = tracemalloc.get_traced_memory()[0]
        threading.settrace(trace)  # a fetch runs in a thread
        sys.settrace(trace)
        try:
            call()
        except (ValueError, RecursionError):
            pass
        finally:
            sys.settrace(before)
            threading.settrace(before)  # type: ignore[arg-type]
        _, peak = tracemalloc.get_traced_memory()
        allocated, held = allocated + peak - last, max(held, peak - base)
    finally:
        tracemalloc.stop()
        gc.enable()
    return Work(lines, allocated, held)


def superlinear(make: Callable[[int], Callable[[], Any]], size: int) -> str:
    """The work that grows faster than the input of sizes n, 4n and 16n; empty if there is none.

    Args:
        make: builds the call for an input of a size; its own work is not counted.
        size: n. What grows by less than a line or 64 bytes for each element does not count.
    """
    make(size)()  # imports and caches
    one, four, sixteen = (measure(make(size * times)) for times in (1, 4, 16))
    for name, floor in zip(Work._fields, (1, 64, 64), strict=True):
        first = getattr(four, name) - getattr(one, name)
        second = getattr(sixteen, name) - getattr(four, name)
        # The second step is four times the first if the work is linear, 16 times if quadratic;
        # tables and lists grow by leaps.
        if second > 8 * max(first, 3 * size * floor):
            figures = [getattr(work, name) for work in (one, four, sixteen)]
            return f"{name}: {figures} for n = {size}, 4n and 16n"
    return ""
