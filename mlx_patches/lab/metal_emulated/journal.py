"""Records what the emulated kernels did since a cell began."""

from dataclasses import dataclass, field


class Fault(RuntimeError):
    """A kernel did something that a device leaves undefined."""


class NotRun(RuntimeError):
    """A kernel cannot be emulated; the message is the reason in one line."""


@dataclass
class Journal:
    """The events since the last ``clear``.

    A release may catch a kernel's exception and continue without the kernel; the journal keeps it.

    Args:
        launched: the call sites of ``mx.fast.metal_kernel`` whose kernels ran, in order.
        faults: what kernels did that a device leaves undefined.
        unwritten: outputs with elements that a kernel never wrote: NaN here, which no device
            guarantees.
        not_run: why kernels could not be emulated.
    """

    launched: dict[str, int] = field(default_factory=dict)
    faults: dict[str, None] = field(default_factory=dict)
    unwritten: dict[str, None] = field(default_factory=dict)
    not_run: dict[str, None] = field(default_factory=dict)

    def clear(self) -> None:
        for noted in (self.launched, self.faults, self.unwritten, self.not_run):
            noted.clear()


JOURNAL = Journal()
