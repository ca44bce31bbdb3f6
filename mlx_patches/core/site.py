"""A site: one attribute of a release that patches change. Only this module writes to it.

A site holds the release's own object and the ordered layers of all patches on it. The installed
object stays in place while layers are added and removed: each change composes the chain again. When
the last layer is removed, the original object is restored.

A site of a function, method, class method, static method or property installs functions that run a
``Chain``; so does a function that a patch adds. Any other value is installed unchanged and
unguarded.
"""

import functools
import sys
from collections.abc import Iterator, Sequence
from types import FunctionType, ModuleType
from typing import Any

from .blame import Function, Step, code_of, inner_function, with_own_code
from .calls import compile_check
from .errors import MlxPatchesError, is_refusal
from .fingerprint import accessors
from .foreign import covers, describe, function_of, relink, wrapper_above
from .guard import CALL_REFUSED, Chain, Composition, Failure, Policy, as_refusal, name_patch
from .patch import MISSING, Attribute, Target, may_return_none
from .record import Record


class Layer(Record):
    """One patch's part of a site; the one with the lowest ``rank`` in the registry is innermost."""

    patch: str
    target: Target
    rank: int
    reason: str
    security: bool = False


class Composed(Record):
    """The result of a site's layers: the value to install, and each factory's result.

    ``parts`` are (patch, its factory's result), the innermost first; ``checks`` are (patch, its
    check of a call).
    """

    layers: tuple[Layer, ...]
    value: Any
    parts: tuple[tuple[str, Any], ...] = ()
    checks: tuple[Step, ...] = ()


class Site:
    """One attribute of a module or a class.

    Args:
        original: its value without our layers; ``MISSING`` if the release does not define it.
        aliases: collects what to replace in other modules.
        lost: the former site of this path; other modules may still refer to its function.
    """

    def __init__(
        self,
        path: str,
        owner: Any,
        original: Any,
        policy: Policy,
        aliases: "Aliases",
        lost: "Site | None" = None,
    ):
        self.path = path
        self.owner = owner
        self.attribute = path.rpartition(":")[2].rpartition(".")[2]
        self.original = original
        self.live: Any = original
        self._lost = lost.live if lost else original
        self._policy = policy
        self._aliases = aliases
        self._kind = _kind(original)
        functions: Sequence[Any] = accessors(original) if self._kind else ()
        if isinstance(owner, type) and self._kind is not staticmethod:
            self._chains = [self._chain(_bindable(one), one) for one in functions]
        else:
            self._chains = [self._chain(one, one) for one in functions]
        entered = [chain and chain.entered for chain in self._chains]
        # The argument of the innermost layer: the original inside a recorder of its entries.
        self._bottom = _like(original, entered) if self._kind else original
        self.composed = Composed((), self._bottom)

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layers in effect, the innermost first."""
        return self.composed.layers

    def _chain(self, original: Any, like: Any) -> Chain | None:
        return Chain(original, like, self._policy) if like else None

    def compose(self, layers: Sequence[Layer]) -> Composed:
        """Apply the factories of these layers to the original, the innermost first.

        Raises:
            MlxPatchesError: a factory returned its argument, or no function for a function.
        """
        ordered = tuple(sorted(layers, key=lambda layer: layer.rank))
        value: Any = self._bottom
        parts: list[tuple[str, Any]] = []
        for layer in ordered:
            if value is MISSING and not layer.target.defines_new_attribute:
                continue  # the patch that adds its original is not in effect
            made = layer.target.factory(value)
            if _is_same(made, value):
                raise MlxPatchesError(f"the replacement of {self.path} is the original")
            if isinstance(made, Attribute):
                made.report = functools.partial(self._attribute_failed, layer)
            if self._kind and not _runs_in_chains(made, self._kind):
                raise MlxPatchesError(f"the replacement of {self.path} is not a function")
            value = made = _with_own_code(made, [part for _, part in parts])
            parts.append((layer.patch, made))
        return Composed(ordered, value, tuple(parts), self._compile_checks(ordered))

    def _compile_checks(self, layers: Sequence[Layer]) -> tuple[Step, ...]:
        """The layers' checks of a call; none if a layer must run in every call."""
        checks = [(one.patch, one.target.when) for one in layers if one.target.when]
        if self._kind in (None, property) or len(checks) < len(layers):
            return ()
        (function,) = accessors(self.original)
        return tuple((patch, compile_check(check, function)) for patch, check in checks)

    def _attribute_failed(self, layer: Layer, error: BaseException | None) -> None:
        if error is not None and is_refusal(error):
            raise error
        if self._policy.strict:
            raise name_patch(error, layer.patch, self.path)
        answer = CALL_REFUSED if layer.security else "the plain value was used"
        self._policy.report(Failure(layer.patch, error, answer))
        if layer.security:
            raise as_refusal(error, layer.patch)

    def compose_without(self, patch: str, *more: Layer) -> Composed:
        return self.compose([*(one for one in self.layers if one.patch != patch), *more])

    def layer_of(self, patch: str) -> Layer | None:
        return next((one for one in self.layers if one.patch == patch), None)

    def install(self, composed: Composed) -> None:
        """Put a composition in effect; without layers, restore the original."""
        covered = self.is_covered()
        if not composed.parts:
            self._clear_chains()
            if not covered:
                self._set_attribute(self.original)
        elif _runs_in_chains(composed.value, self._kind):
            self._set_chains(composed)
            installed = self._make_installed(composed.value)
            if not (covered and installed is self.live):  # a third-party wrapper stays on top
                self._set_attribute(installed)
        else:
            self._set_attribute(composed.value)
        self.composed = composed  # last: after an interrupt, the next write finds the layers

    def swap_layers(self, composed: Composed) -> None:
        """Put a composition in effect; a later replacement of the attribute stays."""
        if self.current() is self.live:
            self.install(composed)
            return
        if _runs_in_chains(composed.value, self._kind):
            self._set_chains(composed)
        self.composed = composed

    def uninstall(self) -> str:
        """Restore the original; returns why that failed, or an empty string.

        Under a third-party wrapper the installed object stays, and runs only the original.
        """
        live = self.current()
        covered = self.is_covered()
        if covered and self.original is not MISSING and relink(live, self.live, self.original):
            covered = False
        if covered and not any(chain and chain.original for chain in self._chains):
            above = describe(wrapper_above(live, self.live))
            return f"cannot be taken out: {above} is on top of it"
        self._clear_chains()
        try:
            if self._is_own(live):
                self._set_attribute(self.original)
            else:
                self._rebind(self.live, self.original)
                self.live = self.live if covered else self.original
        except Exception:  # the attribute cannot be written; it runs only the original
            self.composed = Composed((), self._bottom)
            raise
        self.composed = Composed((), self._bottom)
        return ""

    def _clear_chains(self) -> None:
        for chain in filter(None, self._chains):
            chain.composition = Composition(chain.original)

    def _set_chains(self, composed: Composed) -> None:
        values = accessors(composed.value)
        if not self._chains:
            self._chains = [None] * len(values)
        for index, function in enumerate(values):
            # A function that a patch adds has no original.
            chain = self._chains[index] or self._chain(None, function)
            self._chains[index] = chain
            if chain is not None:
                chain.composition = self._composition(chain, index, composed)

    def _composition(self, chain: Chain, index: int, composed: Composed) -> Composition:
        layers = composed.layers
        steps: list[Step] = []
        below = chain.entered
        for patch, part in composed.parts:
            step = accessors(part)[index]
            if step is not None and step is not below:
                steps.insert(0, (patch, step))
                below = step
        body = accessors(composed.value)[index] if steps else chain.original
        without = functools.partial(self._composition_without, chain, index, layers)
        # A setter returns None, and so does ``__init__``.
        none = index > 0 or self.attribute == "__init__"
        none = none or any(layer.target.answers_none for layer in layers)
        none = none or any(may_return_none(inner_function(step)) for _, step in steps)
        security = frozenset(one.patch for one in layers if one.security)
        return Composition(body, tuple(steps), without, none, composed.checks, security)

    def _composition_without(
        self, chain: Chain, index: int, layers: Sequence[Layer], patch: str
    ) -> Composition | None:
        rest = [one for one in layers if one.patch != patch]
        try:
            composed = self.compose(rest)
        except (Exception, SystemExit):  # a factory failed
            failed = any(one.security for one in rest) or chain.original is None
            return None if failed else Composition(chain.original)
        if composed.value is MISSING:
            inherited = self._find_inherited()
            return Composition(inherited) if inherited else None
        return self._composition(chain, index, composed)

    def _find_inherited(self) -> Function | None:
        """The method that a call of an added one runs without the patch: a base class's."""
        owner, name = self.owner, self.attribute
        if not isinstance(owner, type) or not any(name in vars(base) for base in owner.__mro__[1:]):
            return None

        def call(instance: Any, *args: Any, **kwargs: Any) -> Any:
            return getattr(super(owner, instance), name)(*args, **kwargs)

        return call

    def _make_installed(self, value: Any) -> Any:
        """The object that runs the chains: the live one, unless its accessors differ."""
        functions = [chain and chain.installed for chain in self._chains]
        made = self.live is not self.original and self.live is not MISSING
        if made and [*accessors(self.live)] == functions:
            return self.live
        return _like(value, functions)

    def _set_attribute(self, value: Any) -> None:
        """Write the attribute; other modules get it in the aliases' next pass.

        Each step can be repeated: an interrupt may come before any of them.
        """
        there = self.current()
        if value is not there:
            if value is MISSING:
                delattr(self.owner, self.attribute)
            else:
                setattr(self.owner, self.attribute, value)
        if not (value is there is self.live):  # else its importers already hold it
            self._rebind(there, value)
            self.live = value

    def _rebind(self, there: Any, value: Any) -> None:
        if isinstance(self.owner, ModuleType) and value is not MISSING:
            olds = (self._lost, self.original, self.live, there)
            for old in {id(one): one for one in olds}.values():
                if old is not value and old is not MISSING:
                    self._aliases.add(self.attribute, old, value, self.owner)

    def problem(self) -> str:
        """Why the installed object is not in effect; empty if it is."""
        if self.owner is not current_owner(self.path):
            return f"{self.path.partition(':')[0]} was reloaded"
        live = self.current()
        if live is self.original or live is MISSING:
            return f"{self.path} is the release's own again"
        if live is self.live or covers(live, self.live):
            return ""
        return f"{self.path} was replaced by {describe(live)}"

    def is_in_place(self) -> bool:
        """Whether the attribute holds the installed object, even if it has no layers left."""
        live = self.current()
        if live is self.original or self.owner is not current_owner(self.path):
            return False
        return self._is_own(live) or (self.live is not self.original and covers(live, self.live))

    def _is_own(self, live: Any) -> bool:
        """Whether a value is the installed object, or has its functions."""
        if live is self.live:
            return True
        mine = [chain.installed for chain in self._chains if chain]
        return bool(_kind(live)) and any(function_of(live) is one for one in mine)

    def is_covered(self) -> bool:
        """Whether a third-party wrapper is on top of the installed object."""
        live = self.current()
        if live is self.original or self._is_own(live):
            return False
        return covers(live, self.live)

    def cells(self) -> Iterator[Any]:
        """Our own references to the original: the closure cells of the chains."""
        for chain in filter(None, self._chains):
            yield from chain.cells()

    def current(self) -> Any:
        return vars(self.owner).get(self.attribute, MISSING)


def current_owner(path: str) -> Any:
    """The live module or class that holds a path's attribute; None if there is none."""
    module, _, name = path.partition(":")
    scope: Any = sys.modules.get(module)
    for part in name.split(".")[:-1]:
        scope = getattr(scope, "__dict__", {}).get(part)
    return scope


class Aliases:
    """Replaces the values of sites in the modules that imported them by name.

    A pass visits about a thousand modules, so the changes of several sites are collected for one
    pass. Not thread-safe: the manager calls it under its lock.
    """

    def __init__(self) -> None:
        # (attribute, old value, new value, the module that owns the attribute), oldest first.
        self._changes: list[tuple[str, Any, Any, ModuleType]] = []

    def add(self, attribute: str, old: Any, new: Any, owner: ModuleType) -> None:
        self._changes.append((attribute, old, new, owner))

    def rebind(self) -> None:
        """Make a pass.

        In its own package a value is replaced under any name, in other packages under its
        attribute's name only.
        """
        changes = self._changes
        attributes = {attribute for attribute, *_ in changes}
        olds = {id(old) for _, old, *_ in changes}
        packages = tuple({owner.__name__.partition(".")[0] for *_, owner in changes})
        for name, module in list(sys.modules.items()) if changes else ():
            held = getattr(module, "__dict__", None)
            if type(held) is not dict:
                continue
            if held.keys().isdisjoint(attributes) and not name.startswith(packages):
                continue
            package = name.partition(".")[0]
            every = package in packages
            items = [*held.items()] if every else [(key, held.get(key)) for key in attributes]
            for key in [key for key, value in items if id(value) in olds]:
                for attribute, old, new, owner in changes:
                    mine = key == attribute or package == owner.__name__.partition(".")[0]
                    # Another thread may have changed or removed the name meanwhile.
                    if mine and module is not owner and held.get(key) is old:
                        held[key] = new
        self._changes = []  # not before: after an interrupt the next pass starts over


def _kind(obj: Any) -> type | None:
    """The kind of an attribute: property, class method, static method, function; else None."""
    if type(obj) in (property, classmethod, staticmethod):
        return type(obj)
    return FunctionType if isinstance(obj, FunctionType) else None


def _runs_in_chains(value: Any, kind: type | None) -> bool:
    """Whether chains run a composed value; ``kind`` is that of the original."""
    if kind is None:  # added by a patch; an ``Attribute`` must stay readable in C
        return isinstance(value, (FunctionType, functools.partial, classmethod, staticmethod))
    if kind is FunctionType:
        return callable(value) and not isinstance(value, (type, classmethod, staticmethod))
    return isinstance(value, kind)


def _is_same(made: Any, value: Any) -> bool:
    """Whether a factory returned its argument, or a new object with the same functions."""
    alike = type(made) is type(value) and _kind(value) is not None
    return made is value or (alike and [*map(id, accessors(made))] == [*map(id, accessors(value))])


def _with_own_code(made: Any, below: Sequence[Any]) -> Any:
    """A factory's result; its new functions share no code object with the layers below."""
    held = [function for part in below for function in accessors(part) if function is not None]
    taken = {id(code) for function in held if (code := code_of(inner_function(function)))}
    functions = [
        with_own_code(one)
        if id(code_of(inner_function(one))) in taken and all(one is not old for old in held)
        else one
        for one in accessors(made)
    ]
    return made if functions == [*accessors(made)] else _like(made, functions)


def _like(obj: Any, functions: Sequence[Any]) -> Any:
    """A new attribute of the same kind as ``obj``, with other functions."""
    if isinstance(obj, property):
        get, put, drop = functions
        return property(get, put, drop, obj.__doc__)
    return type(obj)(*functions) if isinstance(obj, (classmethod, staticmethod)) else functions[0]


def _bindable(function: Any) -> Any:
    """A plain function that calls a method which another package replaced with an object.

    Such an object receives the instance only when it is bound.
    """
    if function is None or type(function) is FunctionType:
        return function

    def call(instance: Any, *args: Any, **kwargs: Any) -> Any:
        return function.__get__(instance, type(instance))(*args, **kwargs)

    return functools.wraps(function)(call)
