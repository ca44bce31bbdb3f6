"""Verbs that declare a patch's targets by what changes in a call.

    before(places, check)               before: state, or the call is refused
    argument(places, "mask", change)    before: an argument
    result(places, change)              after: the result
    after(places, amend)                after: state, such as that of a new object
    by_rows(places)                     the call: once per row of its first array
    tensors(places, change)             before: the checkpoint that ``sanitize`` receives
    wrap(places, wrapper)               all of it, if no verb above fits
    define(places, factory)             the attribute itself, such as a property
    add(places, value, *bodies)         an attribute that the release lacks
    convert(places, *bodies, read=)     an attribute of instances when it is read or written

A place is ``package.module:Qualified.name``; ``places`` is one or several. The parameters of the
named function are the arguments that it reads: those before a ``/`` by position, the others by the
release's names. The check ``when`` reads arguments in the same way, that of ``define`` takes all.
Further keywords are those of ``Target``. A patch imports ``Patch``, ``Target``, ``around``,
``refusal``, their types and ``mx`` from here as well.
"""

from collections.abc import Iterable
from typing import Any

from .arrays import mx as mx
from .blame import inner_function
from .calls import ByName, Parameters, compile_check
from .calls import Function as Function
from .errors import refusal as refusal
from .packages import MODELS, distribution_of
from .patch import Attribute as Attribute
from .patch import Factory as Factory
from .patch import Patch as Patch
from .patch import Target as Target
from .patch import around as around
from .patch import replace_function

Places = str | Iterable[str]


def before(
    places: Places, check: Function, when: Function | None = None, **options: Any
) -> tuple[Target, ...]:
    """Targets before whose call ``check`` runs, which changes state or refuses the call."""

    def build(released: Function) -> Function:
        known = Parameters(released)
        body = f"{_only(known, when)} and _check({known.read(check)}); return {_call(known)}"
        return known.compile(body, check, _released=released, _check=check, _when=when)

    return _targets(places, replace_function(build), when, **options)


def argument(
    places: Places, name: str, change: Function, when: Function | None = None, **options: Any
) -> tuple[Target, ...]:
    """Targets whose argument ``name`` is what ``change`` returns."""

    def build(released: Function) -> Function:
        known = Parameters(released)
        value = f"_change({known.read(change)})"
        if when:
            value = f"({value} if {_only(known, when)} else {known.find(name)})"
        body = f"return {_call(known, **{name: value})}"
        known.find(name)  # raises if there is none
        return known.compile(body, change, _released=released, _change=change, _when=when)

    return _targets(places, replace_function(build), when, **options)


def result(
    places: Places, change: Function, when: Function | None = None, **options: Any
) -> tuple[Target, ...]:
    """Targets whose result ``change`` replaces; the result is its first parameter."""

    def build(released: Function) -> Function:
        known = Parameters(released)
        reads = ", ".join(filter(None, ("_result", known.read(change, 1))))
        body = (
            f"_run = {_only(known, when)}; _result = {_call(known)};"
            f" return _change({reads}) if _run else _result"
        )
        made = known.compile(body, change, _released=released, _change=change, _when=when)
        made.__annotations__ = change.__annotations__  # it may return None if this one may
        return made

    return _targets(places, replace_function(build), when, **options)


def after(
    places: Places, amend: Function, when: Function | None = None, **options: Any
) -> tuple[Target, ...]:
    """Targets after whose call ``amend`` changes state; the result is unchanged."""

    def build(released: Function) -> Function:
        known = Parameters(released)
        body = (
            f"_run = {_only(known, when)}; _result = {_call(known)};"
            f" _run and _amend({known.read(amend)}); return _result"
        )
        return known.compile(body, amend, _released=released, _amend=amend, _when=when)

    return _targets(places, replace_function(build), when, **options)


def _only(known: Parameters, when: Function | None) -> str:
    """The condition for the change: another patch's check may let this layer run as well."""
    return f"_when({known.read(when)})" if when else "True"


def _call(known: Parameters, **changed: str) -> str:
    return f"_released({known.forward(**changed)})"


def by_rows(places: Places, is_batch: Function, **options: Any) -> tuple[Target, ...]:
    """Targets that run once per row of their first array if ``is_batch(array)``.

    The results are joined along the rows.
    """

    def call(released: Function, rows: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_batch(rows):  # another patch's check may let this one run
            return released(rows, *args, **kwargs)
        return mx.concatenate([released(row[None], *args, **kwargs) for row in rows])

    return _targets(places, around(call), is_batch, **options)


def tensors(places: Places, change: Function, **options: Any) -> tuple[Target, ...]:
    """Targets (``Model.sanitize``) that receive the checkpoint which ``change`` returns."""
    return argument(places, "weights", change, **options)


def wrap(
    places: Places, wrapper: Function, when: Function | None = None, **options: Any
) -> tuple[Target, ...]:
    """Targets that ``wrapper(released, *args, **kwargs)`` replaces, if no verb fits."""
    check = ByName(when) if when else None
    return _targets(places, _check_again(around(wrapper), check), when, **options)


def define(
    places: Places, factory: Factory, when: Function | None = None, **options: Any
) -> tuple[Target, ...]:
    """Targets that ``factory(released)`` makes; ``when`` takes all arguments of the call."""
    made = _targets(places, _check_again(factory, when), **options)
    return tuple(target._replace(when=when) for target in made)


def _check_again(factory: Factory, when: Function | ByName | None) -> Factory:
    """The same factory; what it makes checks each call again, as the verbs above do."""
    if when is None:
        return factory

    def build(released: Function) -> Function:
        check, layer = compile_check(when, released), factory(released)

        def call(*args: Any, **kwargs: Any) -> Any:
            return (layer if check(*args, **kwargs) else released)(*args, **kwargs)

        call.__annotations__ = inner_function(layer).__annotations__
        return call

    return replace_function(build)


def add(places: Places, value: Any, *bodies: str) -> tuple[Target, ...]:
    """Targets that the release lacks, with this value; ``bodies`` name the defective code."""
    return define(places, lambda _: value, fingerprint_of=bodies, defines_new_attribute=True)


def convert(places: Places, *bodies: str, **options: Any) -> tuple[Target, ...]:
    """Targets at one attribute of instances; ``options`` are those of ``Attribute``."""
    places = [places] if isinstance(places, str) else [*places]
    name = places[0].rpartition(".")[2]

    def make(original: Any) -> Attribute:
        return Attribute(name, **options)

    return define(places, make, fingerprint_of=bodies, defines_new_attribute=True)


def support(*targets: Target) -> tuple[Target, ...]:
    """The same targets, which have no defect, but which the patch's other targets depend on."""
    return tuple(one._replace(supports=True) for one in targets)


def everywhere(place: str) -> tuple[str, ...]:
    """The same ``module:name`` in both packages, such as ``models.cache:KVCache.trim``."""
    return tuple(f"{package}.{place}" for package in MODELS)


def in_caches(names: str) -> tuple[str, ...]:
    """Names in the caches of both packages, separated by spaces, such as ``KVCache.trim``."""
    return tuple(place for name in names.split() for place in everywhere(f"models.cache:{name}"))


def family(families: str, name: str) -> tuple[str, ...]:
    """A name in the language models of these families, separated by spaces, in both packages."""
    return (*lm_family(families, name), *vlm_family(families, name))


def lm_family(families: str, name: str) -> tuple[str, ...]:
    return tuple(f"mlx_lm.models.{one}:{name}" for one in families.split())


def vlm_family(families: str, name: str) -> tuple[str, ...]:
    return tuple(f"mlx_vlm.models.{one}.language:{name}" for one in families.split())


def _targets(
    places: Places, factory: Factory, when: Function | None = None, **options: Any
) -> tuple[Target, ...]:
    check = ByName(when) if when else None
    made = []
    for place in [places] if isinstance(places, str) else places:
        module, _, name = place.partition(":")
        distribution = distribution_of(module.partition(".")[0])
        made.append(Target(distribution, module, name, factory, when=check, **options))
    return tuple(made)
