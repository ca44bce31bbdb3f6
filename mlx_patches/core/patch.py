"""What a patch is: frozen declarations, and the two ways of standing in for an attribute."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

# The value of an attribute that the release does not define at all.
MISSING: Any = type("MISSING", (), {"__repr__": lambda self: "<missing>"})()

Factory = Callable[[Any], Any]


class Target(NamedTuple):
    """One attribute that a patch replaces.

    Args:
        distribution: the distribution that owns it, as on PyPI (``mlx-lm``).
        module: the module that defines it.
        name: its qualified name in that module (``BatchKVCache.extract``).
        factory: builds the replacement from the original. It runs once, when the patch is
            applied, and must have no other effect. Functions come with a counter in front:
            what it must know of the release's own code, it reads from ``inspect.unwrap``.
        body: the functions whose code carries the defect, by qualified name; their hash is
            the target's fingerprint. The target itself unless given.
        adds: the release does not define the attribute and the patch adds it.
        supports: the attribute has no defect: the patch's other targets need it to carry
            something. It is applied where one of them is needed by its release, whatever
            release owns it.
        answers_none: the replacement may answer None where the original gives a value; else
            that is a failure of the patch, and the original's value is used.
    """

    distribution: str
    module: str
    name: str
    factory: Factory
    body: tuple[str, ...] = ()
    adds: bool = False
    supports: bool = False
    answers_none: bool = False

    @property
    def path(self) -> str:
        """``module:Qualified.name``, the target's id."""
        return f"{self.module}:{self.name}"

    @property
    def bodies(self) -> tuple[str, ...]:
        """The qualified names whose code is fingerprinted."""
        return self.body or (self.name,)

    @property
    def mentions(self) -> tuple[str, ...]:
        """Every name that is looked for in the source file: the target, its owner, the bodies."""
        owner = self.name.partition(".")[0]
        return tuple(dict.fromkeys((self.name, owner, *self.bodies)))


class Patch(NamedTuple):
    """One defect's repair.

    Args:
        id: the name that users type.
        summary: one line that says what goes wrong without it.
        targets: what it replaces. All of those that a release needs are applied, or none.
        probe: ``module:function`` of the reproducer, red without the patch.
        module: the module that declares the patch.
        optional: not part of the default set; applied only when named.
        doc: what is wrong, then ``Why``, ``How``, ``Upstream`` and ``Retire when``. Needed where
            a module declares several patches; the module's own docstring otherwise.
    """

    id: str
    summary: str
    targets: tuple[Target, ...]
    probe: str
    module: str
    optional: bool = False
    doc: str = ""

    @property
    def documentation(self) -> str:
        """The patch's docstring, without its indentation."""
        import inspect  # not at start-up: it costs 4 ms

        return inspect.cleandoc(self.doc or importlib.import_module(self.module).__doc__ or "")


def around(wrapper: Callable[..., Any]) -> Factory:
    """Return a factory that calls ``wrapper(original, *args, **kwargs)`` in the original's place.

    Takes functions, class methods, static methods and properties (the getter is wrapped). No
    wrapt proxy: most targets run once a layer a step, where a proxy's 0.5 us would be measurable.
    """

    def factory(original: Any) -> Any:
        if isinstance(original, property):
            return property(
                _bound(original.fget, wrapper), original.fset, original.fdel, original.__doc__
            )
        if isinstance(original, (classmethod, staticmethod)):
            return type(original)(_bound(original.__func__, wrapper))
        return _bound(original, wrapper)

    return factory


def _bound(original: Any, wrapper: Callable[..., Any]) -> Any:
    """The wrapper with its original given: a partial, which costs a call no frame."""
    return functools.update_wrapper(functools.partial(wrapper, original), original)


class Attribute(property):
    """An instance attribute that is converted as it is read or written.

    Values stay in the instance's ``__dict__`` under their own name, so objects that exist
    already keep working when the attribute is added and when it is taken away. A property,
    since those are read in C.

    Args:
        name: the attribute.
        read: ``read(instance) -> value``; the plain value by default.
        write: ``write(value) -> value`` converts what is stored.
    """

    def __init__(
        self,
        name: str,
        read: Callable[[Any], Any] | None = None,
        write: Callable[[Any], Any] | None = None,
    ):
        def put(instance: Any, value: Any) -> None:
            instance.__dict__[name] = value if write is None else write(value)

        def drop(instance: Any) -> None:
            stored(instance, name)
            del instance.__dict__[name]

        super().__init__(read or functools.partial(stored, name=name), put, drop)

    @property
    def __wrapped__(self) -> Any:
        """Nothing: tells wrapt that removing this means deleting the slot."""
        import wrapt

        return wrapt.MISSING


def stored(instance: Any, name: str) -> Any:
    """What an instance holds under a name.

    Raises:
        AttributeError: nothing.
    """
    try:
        return instance.__dict__[name]
    except KeyError:
        kind = type(instance).__name__
        raise AttributeError(f"{kind!r} object has no attribute {name!r}") from None
