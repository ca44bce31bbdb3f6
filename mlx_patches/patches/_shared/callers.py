"""The callers of a function: modules and functions on this thread's stack."""

import sys
from collections.abc import Iterator

from ...core.packages import DISTRIBUTIONS

# The packages of releases and hosts.
RELEASES = frozenset({*DISTRIBUTIONS, "rapid_mlx", "omlx"})


def callers() -> Iterator[tuple[str, str]]:
    """The module and the function of each frame, the innermost first."""
    frame = sys._getframe(1)
    while frame is not None:
        names = frame.f_globals
        module = str(names.get("__name__"))
        if module == "__main__":  # of ``python -m``: the spec has the module's name
            module = getattr(names.get("__spec__"), "name", None) or module
        yield module, frame.f_code.co_name
        frame = frame.f_back  # type: ignore[assignment]


def is_vlm_starting() -> bool:
    """Whether mlx_vlm.server loads a model as it starts, and not for a request."""
    return any(
        function == "lifespan" and module.startswith("mlx_vlm.server")
        for module, function in callers()
    )
