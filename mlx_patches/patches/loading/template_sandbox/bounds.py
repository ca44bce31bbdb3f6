"""The bounds of a chat template's render: the text that it makes, and its processor time.

Both grow with what the template is given, so that a long conversation has room. Every value that a
template makes is measured before anything can be made of it, so no single step is long, and the
time is checked between the steps.
"""

import functools
import logging
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextvars import ContextVar
from typing import Any

from ....core.errors import refusal
from ..._shared.refusals import bad_request

logger = logging.getLogger("mlx_patches")

ID = "template-sandbox"
# The characters that any value, or the whole prompt, may have, and how many more per character
# of the request and of the template.
TEXT, TEXT_PER_CHARACTER = 2**20, 16
# The same for the processor time, in seconds. Gemma 4's template has 17,000 characters and needs 6
# seconds for 2,000 messages, which are given 14 more for their own 140,000.
SECONDS, SECONDS_PER_CHARACTER = 1.0, 1e-4
# An estimate of what a step makes is too high by at most this.
_SLACK = 16
# The size of an object in a list or dictionary, in characters.
_OBJECT = 16
# The bits of an integer: steps on longer ones are slow.
_BITS = 2**16
# The steps between two looks at the clock.
_STEPS = 16
# Filters and methods whose result may be larger than all that they are given.
_NAMES = """
    batch center expandtabs format format_map generate_lorem_ipsum indent join ljust replace rjust
    round slice sum to_bytes tojson translate urlize wordwrap xmlattr zfill
"""
EXPANDING = frozenset(_NAMES.split())
_NUMBER = re.compile(r"\d+")
_REMEDY = "correct the chat template in the model's folder, or load the model with another one"


class Budget:
    """What is left to one render; ``given`` is the size of the request and the template."""

    def __init__(self, given: int = 0):
        self.text = TEXT + TEXT_PER_CHARACTER * given
        self.end = time.thread_time() + SECONDS + SECONDS_PER_CHARACTER * given
        self.steps = 0


current: ContextVar[Budget | None] = ContextVar("mlx_patches_template", default=None)


def budget() -> Budget:
    """The budget of the current render; a new one while a template is compiled."""
    return current.get() or Budget()


def count_step() -> None:
    left = current.get()
    if left is not None:
        left.steps += 1
        if left.steps % _STEPS == 0 and time.thread_time() > left.end:
            refuse("it does not end")


def check(value: Any) -> Any:
    """Return a value that the template made; one that is too large is refused."""
    limit = budget().text
    if isinstance(value, int):
        if value.bit_length() > _BITS:
            refuse("it makes too large a number")
    elif measure(value, limit) > limit:
        refuse("it makes too much text")
    return value


def count_items(items: Iterator[Any]) -> Iterator[Any]:
    """Pass on the items of a generator, which together are one value."""
    total = 0
    for item in items:
        count_step()
        limit = budget().text
        total += measure(item, limit)
        if total > limit:
            refuse("it makes too much text")
        yield item


class Buffer(list[Any]):
    """The output of a block; it is one value."""

    def __init__(self, items: Iterable[Any] = ()):
        self.total = 0
        self.limit = budget().text
        super().__init__()
        self.extend(items)

    def append(self, item: Any) -> None:
        count_step()
        self.total += len(item)
        if self.total > self.limit:
            refuse("it makes too much text")
        super().append(item)

    def extend(self, items: Iterable[Any]) -> None:
        for item in items:
            self.append(item)


def measure(value: Any, limit: float = float("inf")) -> int:
    """The characters in a value and everything in it, or more than ``limit`` if it has more."""
    total, rest = 0, [value]
    while rest and total <= limit:
        one = rest.pop()
        if isinstance(one, (str, bytes)):
            total += len(one) + 1
            continue
        total += _OBJECT
        if isinstance(one, Mapping):
            rest += one.keys()
            rest += one.values()
        elif isinstance(one, (Sequence, Set)) and not isinstance(one, range):
            rest += one
    return total


def check_expansion(name: str, subject: Any, args: Iterable[Any]) -> None:
    """Refuse a step whose result would be too large."""
    limit = budget().text * _SLACK
    sizes = [1 if isinstance(subject, int) else measure(subject, limit)]
    sizes += [abs(one) if isinstance(one, int) else measure(one, limit) for one in args]
    if name in ("format", "format_map") and isinstance(subject, str):
        check_format(subject, sizes[1:])
    elif name == "sum":  # adding up lists copies them again and again
        sizes.append(len(subject) if isinstance(subject, Sequence) else 1)
    largest = sorted(sizes)[-2:]
    if largest[0] * largest[-1] > limit if len(largest) > 1 else largest[0] > limit:
        refuse("it makes too much text")


def check_format(text: str, sizes: Iterable[int]) -> None:
    """Refuse a format whose result would be too large; ``sizes`` are those of its arguments."""
    widths = [int(number[:12]) for number in _NUMBER.findall(text)]
    fields = 1 + text.count("%") + text.count("{")
    if fields * (max(widths, default=0) + sum(sizes)) > budget().text * _SLACK:
        refuse("it makes too much text")


def check_operation(operator: str, left: Any, right: Any) -> None:
    limit = budget().text
    if operator == "*":
        for many, times in ((left, right), (right, left)):
            repeats = isinstance(many, Sequence) and isinstance(times, int) and times > 1
            if repeats and measure(many, limit) * times > limit:
                refuse("it makes too much text")
    elif operator == "**" and isinstance(left, int) and isinstance(right, int):
        if left.bit_length() * right > _BITS:
            refuse("it makes too large a number")
    elif operator == "%" and isinstance(left, (str, bytes)):
        text = left if isinstance(left, str) else left.decode("latin-1")
        numbers = right if isinstance(right, tuple) else (right,)
        widths = [abs(one) for one in numbers if isinstance(one, int)] if "*" in text else []
        check_format(text, [measure(right, limit), *widths])


def refuse(reason: str) -> None:
    raise as_refusal(reason)


def as_refusal(reason: str) -> Exception:
    """The error for the host and its client, in one line."""
    reason = " ".join(reason.split())[:200]
    logger.warning("mlx_patches: %s stopped a chat template: %s", ID, reason)
    return refusal(stop_error_class()(f"The chat template was stopped: {reason}; {_REMEDY}"))


@functools.cache
def stop_error_class() -> type[Exception]:
    """The class of the error: jinja2's SecurityError, with status 400 for FastAPI."""
    from jinja2.exceptions import SecurityError  # type: ignore[import-not-found]

    base: Any = bad_request()
    return type("TemplateStopped", (base, SecurityError), {})
