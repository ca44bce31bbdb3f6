import functools
import itertools
import sys
from types import SimpleNamespace
from unittest import mock

import pytest
import wrapt

from mlx_patches.core import fingerprint, site

from .conftest import load, manager_for, patch_of

NAMES = ("attend", "Cache.update", "Cache.state")
STEPS = "awur"  # apply, wrap, unwrap, restore


def passing_on(inner, instance, args, kwargs):
    return inner(*args, **kwargs)


@wrapt.decorator
def decorate(inner, instance, args, kwargs):
    return inner(*args, **kwargs)


def closure(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


def plain(function):
    return lambda *args: function(*args)


def on_getter(wrap):
    def wrap_parts(obj):
        return property(wrap(obj.fget), obj.fset) if isinstance(obj, property) else wrap(obj)

    return wrap_parts


def wrap_in_place(owner, name, obj):
    wrapt.wrap_function_wrapper(owner, name, passing_on)


def wrap_with(wrap):
    def write(owner, name, obj):
        setattr(owner, name, on_getter(wrap)(obj))

    return write


WRAPPERS = {
    "wrapt in place": wrap_in_place,
    "wrapt around the function": wrap_with(
        lambda function: wrapt.FunctionWrapper(function, passing_on)
    ),
    "wrapt's decorator": wrap_with(decorate),
    "functools": wrap_with(closure),
    "plain": wrap_with(plain),
    "mock": None,
}


class Place:
    """An attribute, and another package's wrapper on top of it."""

    def __init__(self, owner, name, wrap):
        self.owner, self.name, self.wrap = owner, name, wrap
        self.own = self.live
        self.undo = []

    @property
    def live(self):
        return vars(self.owner)[self.name]

    def on_top(self):
        before = self.live
        if self.wrap is None:
            if isinstance(before, property):
                made = property(before.fget)
                patcher = mock.patch.object(self.owner, self.name, made)
            else:
                patcher = mock.patch.object(self.owner, self.name, wraps=before)
            patcher.start()
            self.undo.append(patcher.stop)
        else:
            self.wrap(self.owner, self.name, before)
            self.undo.append(functools.partial(setattr, self.owner, self.name, before))


def orders(longest):
    """Every order of up to ``longest`` steps that only unwraps wrapped attributes."""
    for length in range(1, longest + 1):
        for order in itertools.product(STEPS, repeat=length):
            on_top = [order[: n + 1].count("w") - order[: n + 1].count("u") for n in range(length)]
            if min(on_top) >= 0:
                yield "".join(order)


def test_orders_are_many():
    assert len([*orders(6)]) == len({*orders(6)}) > 2000


# Six steps take as long as hundreds of other tests.
@pytest.mark.parametrize(
    ("kind", "longest"),
    [("plain", 5), *(pytest.param(kind, 6, marks=pytest.mark.slow) for kind in WRAPPERS)],
)
def test_every_order_of_steps_restores_original(cache, kind, longest, monkeypatch):
    user = load("fake_lm.model")  # imported ``attend`` by name
    places = [
        Place(cache if "." not in name else cache.Cache, name.rpartition(".")[2], WRAPPERS[kind])
        for name in NAMES
    ]
    patch = patch_of(*NAMES)
    # Of thousands of changes: hash a function once, and visit only these modules.
    hash_bodies = functools.cache(lambda functions: fingerprint._hash(map(parse, functions)))
    parse = fingerprint.parse_function
    monkeypatch.setattr(
        fingerprint, "hash_object", lambda obj: hash_bodies(tuple(fingerprint.functions_of(obj)))
    )
    modules = {name: module for name, module in sys.modules.items() if name.startswith("fake_lm")}
    monkeypatch.setattr(site, "sys", SimpleNamespace(modules=modules))
    wrong = []
    for order in orders(longest):
        manager = manager_for(patch)
        steps = {
            "a": lambda: manager.apply(patch),  # noqa: B023
            "r": manager.restore,
            "w": lambda: [place.on_top() for place in places],
            "u": lambda: [place.undo.pop()() for place in places],
        }
        for step in order:
            steps[step]()
        while places[0].undo:
            steps["u"]()
        steps["r"]()
        left = [place.name for place in places if place.live is not place.own]
        if left or user.attend is not places[0].own:
            wrong.append((order, left))
            for place in places:
                setattr(place.owner, place.name, place.own)
            user.attend = places[0].own
    assert not wrong
