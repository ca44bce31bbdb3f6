"""Declarations of patches and targets, and two kinds of replacement for an attribute."""

import functools
import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from .calls import ByName

# The value of an attribute that the release does not define at all.
MISSING: Any = type("MISSING", (), {"__repr__": lambda self: "<missing>"})()

Factory = Callable[[Any], Any]
# What a replacement takes over; its annotations are those of the patch's function.
_COPIED = ("__module__", "__name__", "__qualname__", "__doc__")


class Target(NamedTuple):
    """One attribute that a patch replaces.

    Args:
        distribution: the distribution that owns it, as on PyPI (``mlx-lm``).
        module: the module that defines it.
        name: its qualified name in that module (``BatchKVCache.extract``).
        factory: builds the replacement from the original. It runs whenever the attribute's layers
            are composed, possibly several times, and must have no other effect. Functions
            arrive wrapped in a recorder: ``inspect.unwrap`` returns the release's own function.
        fingerprint_of: the functions whose code carries the defect, by qualified name; their hash
            is the target's fingerprint. By default the target itself.
        defines_new_attribute: the release does not define the attribute and the patch adds it.
        supports: the attribute has no defect, but the patch's other targets depend on it. It is
            patched in every release of its distribution if one of them needs the patch.
        answers_none: the replacement may return None where the original returns a value, or
            without calling the original. So may a function whose return annotation has ``None``.
            Any other such None is a failure of the patch.
        when: a cheap check of a call's arguments, for a function or method that every step calls:
            False if the replacement would only return the original's result. If the checks of
            all layers return False, the call runs only the original.
    """

    distribution: str
    module: str
    name: str
    factory: Factory
    fingerprint_of: tuple[str, ...] = ()
    defines_new_attribute: bool = False
    supports: bool = False
    answers_none: bool = False
    when: "Callable[..., bool] | ByName | None" = None

    @property
    def path(self) -> str:
        """``module:Qualified.name``, the target's id."""
        return f"{self.module}:{self.name}"

    @property
    def bodies(self) -> tuple[str, ...]:
        return self.fingerprint_of or (self.name,)

    @property
    def mentions(self) -> tuple[str, ...]:
        """The names to look up in the source file: the target, its owner, the bodies."""
        owner = self.name.partition(".")[0]
        return tuple(dict.fromkeys((self.name, owner, *self.bodies)))

    def holds_back(self, other: "Target") -> bool:
        """Whether another target of the patch is not applied if this one cannot be.

        Half a patch is worse than none, but models do not depend on each other's code: only
        targets of the same model or module hold each other back, and those of the caches, which
        every model has. So the result does not depend on what a process has imported.
        """
        return self.distribution == other.distribution and (
            self._part in ("cache", "base") or self._part == other._part
        )

    @property
    def _part(self) -> str:
        """The model that a target belongs to, or its module."""
        return self.module.partition(".models.")[2].partition(".")[0] or self.module


class Patch(NamedTuple):
    """One defect's repair.

    Args:
        id: the name that users type.
        summary: one line: product or models, symptom, when. Built-in patches get it from the first
            sentence of their docstring.
        targets: what it replaces. Either all targets that a release needs are applied, or none.
        module: the module that declares the patch. Built-in patches get it from the catalogue.
        probe: ``module:function`` of the reproducer, red without the patch. A module that begins
            with a dot is relative to the patch's folder.
        severity: the effect on users, a word of ``evidence.words.SEVERITIES``.
        every_model: it is applied whatever model is loaded, by default if none of its targets is in
            a model's module or the caches. Other patches are applied only if the model's entry in
            the matrix names them.
        wrong_solo: the model types, separated by spaces, whose published configs are wrong even for
            a single request. That of a module means every type that the module implements.
        changes_solo: it changes the result of a single request, even without ``wrong_solo``.
        optional: not part of the default set; applied only by id.
        profiles: further profiles, besides the one of its folder.
        formerly: its previous id, which users' settings may still name.
        mlx: the releases of MLX with which the code has the defect; empty for all.
        security: it limits what a request or a model's folder can reach. If it
            fails in a call, the call is refused; it is never withdrawn.
        doc: what is wrong, then ``Why:``, ``How:``, ``Upstream:`` and ``Retire when:``. Needed if
            a module declares several patches; by default the module's own docstring.
    """

    id: str
    summary: str = ""
    targets: tuple[Target, ...] = ()
    module: str = ""
    probe: str = ".probe:probe"
    optional: bool = False
    doc: str = ""
    security: bool = False
    severity: str = "wrong-text"  # the worst, so that a new patch is not overlooked
    every_model: bool | None = None
    wrong_solo: str = ""
    changes_solo: bool = False
    profiles: tuple[str, ...] = ()
    mlx: tuple[str, ...] = ()
    formerly: str = ""

    @property
    def probe_place(self) -> tuple[str, str]:
        module, _, function = self.probe.partition(":")
        if module.startswith("."):
            assert self.module, f"take {self.id} from the catalogue, which knows its module"
            module = self.module.rpartition(".")[0] + module
        return module, function

    @property
    def documentation(self) -> str:
        """The patch's docstring, without its indentation, each of its parts under a heading."""
        import inspect  # not at start-up: it costs 4 ms
        import re

        doc = inspect.cleandoc(self.doc or importlib.import_module(self.module).__doc__ or "")
        return re.sub(r"^(Why|How|Upstream|Retire when): ", r"\1\n    ", doc, flags=re.MULTILINE)

    @property
    def headline(self) -> str:
        """The first sentence of the patch's docstring, on one line."""
        return " ".join(self.documentation.partition("\n\n")[0].split()).removesuffix(".")


def around(wrapper: Callable[..., Any]) -> Factory:
    """Return a factory that calls ``wrapper(original, *args, **kwargs)`` in the original's place.

    It does not use a wrapt proxy: most targets run once per model layer and decode step, where a
    proxy's 0.5 us would be measurable.
    """
    return replace_function(functools.partial(functools.partial, wrapper))  # adds no frame


def replace_function(build: Factory) -> Factory:
    """Return a factory that calls ``build(function)`` for the function of an attribute.

    It accepts functions, class methods, static methods and properties (the getter is replaced).
    """

    return functools.partial(_replace, build)  # no closures: a collection of garbage costs less


def _replace(build: Factory, original: Any) -> Any:
    if isinstance(original, property):
        getter = _replace(build, original.fget)
        return property(getter, original.fset, original.fdel, original.__doc__)
    if isinstance(original, (classmethod, staticmethod)):
        return type(original)(_replace(build, original.__func__))
    return functools.update_wrapper(build(original), original, _COPIED)


class Attribute(property):
    """An instance attribute whose value is converted when it is read or written.

    Values stay in the instance's ``__dict__`` under their own name, so existing objects keep
    working when the attribute is added and when it is removed. If a function of the patch fails,
    the plain value is read or stored. ``report`` is called with the error; the attribute's site
    sets it.

    Args:
        name: the attribute.
        read: ``read(instance) -> value``; the plain value by default.
        write: ``write(value) -> value`` converts what is stored.
        put: ``put(instance, value)`` stores the value, in place of ``write``.
        guarded: False if ``read`` and ``put`` never fail; each then costs one call, not two.
    """

    report: Callable[[BaseException | None], None]

    def __init__(
        self,
        name: str,
        read: Callable[[Any], Any] | None = None,
        write: Callable[[Any], Any] | None = None,
        put: Callable[[Any, Any], None] | None = None,
        guarded: bool = True,
    ):
        may_be_none = read is not None and may_return_none(read)

        def get(instance: Any) -> Any:
            try:
                value = read(instance)  # type: ignore[misc]
            except (Exception, SystemExit) as error:
                value = read_stored(instance, name)
                self.report(error)
            if value is None and not may_be_none:
                plain = instance.__dict__.get(name)
                if plain is not None:
                    self.report(None)
                return plain
            return value

        def store(instance: Any, value: Any) -> None:
            try:
                if put is not None:
                    return put(instance, value)
                converted = value if write is None else write(value)
            except (Exception, SystemExit) as error:
                self.report(error)
                converted = value
            held = instance.__dict__
            if name not in held:
                held = detach_dict(instance)
            held[name] = converted

        def drop(instance: Any) -> None:
            read_stored(instance, name)
            del instance.__dict__[name]

        plain = functools.partial(read_stored, name=name)
        getter, setter = (get, store) if guarded else (read, put or store)
        super().__init__(getter if read else plain, setter, drop)

    @property
    def __wrapped__(self) -> Any:
        """``wrapt.MISSING``, if wrapt has it: this object wraps nothing and can be deleted."""
        import wrapt

        return getattr(wrapt, "MISSING", None)


def may_return_none(function: Any) -> bool:
    return "None" in str(getattr(function, "__annotations__", {}).get("return", ""))


def detach_dict(instance: Any) -> dict[str, Any]:
    """Give an instance a ``__dict__`` with unshared keys, and return it.

    Instances of a class share the keys of their dicts. In Python 3.11 and 3.12, once such a
    ``__dict__`` was read from outside, every attribute look-up of the instance is slow: 0.4 us per
    update of a cache. Unshared keys avoid that.
    """
    held: dict[str, Any] = {**instance.__dict__}
    instance.__dict__ = held
    return held


def read_stored(instance: Any, name: str) -> Any:
    """The value in an instance's ``__dict__`` under a name, or AttributeError."""
    try:
        return instance.__dict__[name]
    except KeyError:
        kind = type(instance).__name__
        raise AttributeError(f"{kind!r} object has no attribute {name!r}") from None
