"""Sets ``max_size`` to values seen in hosts, and uses the cache past its window."""

from collections.abc import Callable
from typing import Any

from ....probes.kit import Result, Target, make_keys_and_values, mx, own_class_of

_WINDOW = 8


def probe(target: Target) -> Result:
    """Red if ``max_size`` is not read back as an int, or the window has another size."""
    cache_class = own_class_of(target)
    written: dict[str, Callable[[], Any]] = {
        "int": lambda: _WINDOW,
        "array": lambda: mx.array(_WINDOW),
        "one-element array": lambda: mx.array([_WINDOW]),
        "array of equal elements": lambda: mx.array([_WINDOW, _WINDOW]),
        "text": lambda: str(_WINDOW),
    }
    wrong = [name for name, value in written.items() if _is_wrong(cache_class, value())]
    if wrong:
        return Result(True, f"max_size is unusable after it is set to {', '.join(wrong)}")
    return Result(False, "max_size is an int")


def _is_wrong(cache_class: Any, value: Any) -> bool:
    rows = 2 if cache_class.__name__.startswith("Batch") else 1
    cache = cache_class(_WINDOW, [1, 0]) if rows == 2 else cache_class(_WINDOW)
    cache.max_size = value
    if type(cache.max_size) is not int:
        return True
    for _ in range(_WINDOW + 2):
        keys, _ = cache.update_and_fetch(*make_keys_and_values(rows, 1))
    return bool(keys.shape[2] != _WINDOW)
