"""Calls back when a module of a watched package has been completely imported.

Standard library only, so that it can wait in a process that never imports MLX. wrapt's
post-import hooks are for one module each, import wrapt at once (14 ms) and run while the module is
still half-imported; a ``Watcher`` covers whole packages, survives ``importlib.reload`` and waits
until the module is complete. Exceptions of the callback are logged; they reach the host's import
only in strict mode.
"""

from __future__ import annotations

import sys

from ..core.imports import as_main, complete, ended

TYPE_CHECKING = False  # as typing has it; this module is imported in every enabled process
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from importlib.machinery import ModuleSpec
    from types import CodeType, ModuleType
    from typing import Any

    Callback = Callable[[ModuleType], object]
else:
    ModuleSpec = type(sys.__spec__)
# Lazy loaders and test doubles put other things into sys.modules.
Module = type(sys)


class Watcher:
    """A finder that returns the specs of other finders and calls back after loading."""

    def __init__(
        self,
        packages: Iterable[str],
        callback: Callback,
        strict: bool = False,
        in_copy: Callable[[str], object] = lambda name: None,
    ):
        self.packages = frozenset(packages)
        self.callback = callback
        self.strict = strict
        # Called with the name of a module that will run as ``__main__`` in a copy of its code.
        self.in_copy = in_copy
        self._watching = False

    @property
    def lost(self) -> bool:
        """Whether other code has removed this finder from ``sys.meta_path``."""
        return self._watching and self not in sys.meta_path

    def install(self) -> None:
        """Start watching; modules that are half-imported now are reported when complete."""
        self._watching = True
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)
        prefixes = tuple(self.packages)  # start-up checks a thousand modules
        for name, module in list(sys.modules.items()):
            if not (name.startswith(prefixes) and self.watches(name)):
                continue
            if isinstance(module, Module) and not complete(module):
                _when_complete(module, self._notify)

    def uninstall(self) -> None:
        self._watching = False
        # A new list: a thread that iterates over the old one would skip a finder.
        sys.meta_path = [finder for finder in sys.meta_path if finder is not self]

    def watches(self, name: str) -> bool:
        """True for the packages themselves and everything below them."""
        return name.partition(".")[0] in self.packages

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find the module with the finders after this one, and wrap its loader."""
        finders = list(sys.meta_path)
        if not self.watches(name) or self not in finders:
            return None
        for finder in finders[finders.index(self) + 1 :]:
            spec = finder.find_spec(name, path, target) if hasattr(finder, "find_spec") else None
            if spec is not None:
                self._follow(spec)
                return spec
        return None

    def _follow(self, spec: ModuleSpec) -> None:
        import copy
        import functools

        loader = spec.loader
        if loader is None or not hasattr(loader, "exec_module"):
            return
        try:
            followed: Any = copy.copy(loader)  # a loader may serve many modules (zipimport)
            # No closures: a host may collect garbage after each request, and this is per module.
            followed.exec_module = functools.partial(Watcher._exec_module, self, loader)
            if hasattr(loader, "get_code"):
                followed.get_code = functools.partial(Watcher._get_code, self, loader)
            spec.loader = followed
        except Exception:
            _warn(f"mlx_patches cannot follow the import of {spec.name}")

    def _exec_module(self, loader: Any, module: ModuleType) -> None:
        loader.exec_module(module)
        self._notify(module)

    def _get_code(self, loader: Any, name: str) -> CodeType | None:
        """The code by which ``python -m`` and ``runpy`` run a module."""
        from .main_module import code_of  # parses: only if a module is run

        code = code_of(name, loader)
        as_main[name] = code is not None
        if code is None:
            self.in_copy(name)
        return code or loader.get_code(name)

    def _notify(self, module: ModuleType) -> None:
        ended.add(id(module))
        try:
            self.callback(module)
        except Exception:
            if self.strict:
                sys.modules.pop(module.__name__, None)  # a second import must not succeed
                raise
            _warn(f"mlx_patches failed after the import of {module.__name__}")
        finally:
            ended.discard(id(module))


def _warn(message: str) -> None:
    import logging  # only when needed: it costs 8 ms at start-up

    logging.getLogger("mlx_patches").warning(message, exc_info=True)


class _AwaitedSpec(ModuleSpec):
    """A spec that reports when its module is complete.

    The import system's last step is to clear ``_initializing`` on the module's spec. Nothing else
    marks the end of an import that began before the watcher was installed.
    """

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if name == "_initializing" and not value:
            self.__class__ = ModuleSpec  # type: ignore[assignment]
            _report(self.__dict__.pop("awaited", {}))


def _when_complete(module: ModuleType, callback: Callback) -> None:
    spec = module.__spec__
    assert spec is not None  # an incomplete module has one
    if type(spec) not in (ModuleSpec, _AwaitedSpec):
        _warn(f"mlx_patches cannot await the import of {module.__name__}")
        return
    # Another thread may do the same, or end the import, between any two of these lines.
    waiting = spec.__dict__.setdefault("awaited", {})
    spec.__class__ = _AwaitedSpec
    waiting[callback] = module
    if complete(module):
        spec._initializing = False  # type: ignore[attr-defined]
        _report(waiting)


def _report(waiting: dict[Callback, ModuleType]) -> None:
    for callback in list(waiting):
        module = waiting.pop(callback, None)
        if module is not None and sys.modules.get(module.__name__) is module:
            callback(module)  # a failed import has removed its module
