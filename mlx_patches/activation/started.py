"""How this process was started, recorded by ``boot``.

Standard library only, and little of it, as in ``boot``.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

# The host that this environment was enabled for; empty for all hosts or none.
host = ""
# The profile that this process was started with; None for the default.
profile: str | None = None
# Whether to log that patches are on: this process is a server that ``run`` did not start.
announces = False


def program(argv: Sequence[str]) -> tuple[str, str]:
    """The option and the name of what a Python command line runs.

    ``("-m", module)``, ``("-c", "")``, ``("", script)``, or two empty texts for neither.
    """
    arguments = iter(argv[1:])
    for argument in arguments:
        if argument == "--":
            return "", next(arguments, "")
        if argument == "--check-hash-based-pycs":
            next(arguments, "")
        if argument.startswith("--"):
            continue
        if argument == "-" or not argument.startswith("-"):
            return "", argument
        for place, letter in enumerate(argument[1:], 2):
            if letter in "cmWX":  # the rest of the group is its value, or the next argument
                value = argument[place:] or next(arguments, "")
                if letter == "m":
                    return "-m", value
                if letter == "c":
                    return "-c", ""
                break
    return "", ""
