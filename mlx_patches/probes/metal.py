"""Runs a release's Metal-only code, emulated if there is no Metal."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType

from ..core.arrays import mx
from ..evidence.results import BrokenEnvironment
from ..lab.metal_emulated.library import missing


@contextmanager
def metal_branch(module: ModuleType) -> Iterator[None]:
    """Let an imported module that checked for Metal run its Metal-only code."""
    from ..lab.metal_emulated import mac

    with ExitStack() as stack:
        if not mx.metal.is_available():
            if reason := missing():
                raise BrokenEnvironment(reason)
            stack.enter_context(mac.emulate_metal())
            stack.callback(vars(module).__setitem__, "_HAS_METAL", module._HAS_METAL)
            vars(module)["_HAS_METAL"] = True
            _forget(module)
            stack.callback(_forget, module)
        yield


def _forget(module: ModuleType) -> None:
    """Clear the module's cached kernels, or the cached absence of them."""
    for value in vars(module).values():
        if hasattr(value, "cache_clear"):
            value.cache_clear()
