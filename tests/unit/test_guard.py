"""A replacement that raises while the host runs."""

from __future__ import annotations

import functools
import gc
import inspect
import io
import json
import logging
import sys
import threading
import weakref
from argparse import Namespace
from types import SimpleNamespace

import pytest
import wrapt

import mlx_patches
from mlx_patches.activation import session as activation
from mlx_patches.core.errors import refusal
from mlx_patches.core.manager import Manager
from mlx_patches.core.patch import Attribute, after, around
from mlx_patches.core.returns import gives_a_value
from mlx_patches.core.site import Site
from mlx_patches.lab import Cell, Family
from mlx_patches.lab import child as lab
from mlx_patches.matrix.gate import Gate
from mlx_patches.probes import Result, child

from .conftest import (
    load,
    manager_for,
    marked,
    matrix_for,
    patch_of,
    session_for,
    statuses,
    target,
)


def early(original, *args, **kwargs):
    raise ValueError("too early")


def late(original, *args, **kwargs):
    original(*args, **kwargs)
    raise ValueError("too late")


EARLY, LATE = around(early), around(late)


@pytest.fixture
def cache(fake):
    return load("fake_lm.cache")


def applied(*targets, **more):
    """A manager with a patch of these targets in effect."""
    manager = manager_for(patch := patch_of(*targets, **more))
    assert set(statuses(manager.apply(patch))) == {"applied"}
    return manager, patch


def kinds(cache):
    """Each kind of attribute: its name, a call of it, and the release's own result."""
    made = cache.Cache()
    return {
        "Cache.update": (lambda: made.update(0), 0),
        "Cache.state": (lambda: made.state, [0]),
        "Cache.make": (lambda: type(cache.Cache.make()), cache.Cache),
        "Cache.twice": (lambda: cache.Cache.twice(2), 4),
        "attend": (lambda: cache.attend(1), 2),
    }


@pytest.mark.parametrize("name", ["Cache.update", "Cache.state", "Cache.make", "Cache.twice"])
def test_the_original_runs_and_at_the_third_time_the_patch_is_taken_out_whole(cache, name, caplog):
    call, expected = kinds(cache)[name]
    before = dict(vars(cache.Cache)), cache.attend
    manager, patch = applied(target(name, factory=EARLY), "attend")
    path = f"fake_lm.cache:{name}"
    with caplog.at_level(logging.WARNING, "mlx_patches"):
        for count in (1, 2):
            assert call() == expected
            assert statuses(manager.status()) == ["applied", "applied"]
            said = f"fix was skipped in this call of {path} ({count} of 3): ValueError: too early"
            assert said in caplog.text
        assert call() == expected
        assert call() == expected
    assert len(caplog.records) == 3
    assert f"fix was taken out: raised in {path}: ValueError: too early; the" in caplog.text
    assert "the host goes on with the release's own code. From now on: goes wrong" in caplog.text
    assert (dict(vars(cache.Cache)), cache.attend) == before
    assert statuses(manager.status()) == ["failed", "failed"]
    assert all(outcome.finding for outcome in manager.status())
    assert statuses(manager.apply(patch)) == ["failed", "failed"]
    assert call() == expected


def test_a_setter_that_raises_is_guarded_too(cache):
    def factory(original):
        def put(instance, value):
            raise ValueError("on purpose")

        return property(original.fget, put)

    manager, _ = applied(target("Cache.state", factory=factory))
    made = cache.Cache()
    for value in (7, 8, 9):
        made.state = [value]
        assert made.offset == value
    assert statuses(manager.status()) == ["failed"]


def test_what_the_original_returned_is_the_calls_result(cache, caplog):
    manager, _ = applied(target("Cache.update", factory=LATE))
    made = cache.Cache()
    assert made.update(3) == 3
    assert made.offset == 3
    assert "fix was skipped in this call of fake_lm.cache:Cache.update (1 of 3)" in caplog.text
    assert statuses(manager.status()) == ["applied"]
    assert [made.update(1) for _ in range(3)] == [4, 5, 6]
    assert statuses(manager.status()) == ["failed"]


def twice(original, cache, n):
    original(cache, n)
    original(cache, n)
    raise ValueError("too late")


def with_other_arguments(original, cache, n):
    original(cache, n + 1)
    raise ValueError("too late")


@pytest.mark.parametrize(("wrapper", "offset"), [(twice, 6), (with_other_arguments, 4)])
def test_a_call_that_touched_state_fails_and_the_patch_is_taken_out_at_once(
    cache, caplog, wrapper, offset
):
    manager, _ = applied(target("Cache.update", factory=around(wrapper)))
    made = cache.Cache()
    with pytest.raises(ValueError, match="too late"):
        made.update(3)
    assert made.offset == offset
    assert "this call fails, later ones run the release's own code" in caplog.text
    assert statuses(manager.status()) == ["failed"]
    assert made.update(3) == offset + 3


@pytest.mark.parametrize("enters", [False, True])
def test_none_where_the_original_gives_a_value_is_a_failure(cache, caplog, enters):
    def forgets(original, x):
        if enters:
            original(x)

    manager, _ = applied(target("attend", factory=around(forgets)))
    assert [cache.attend(1) for _ in range(3)] == [2, 2, 2]
    assert "fix was taken out: raised in fake_lm.cache:attend: it returned None" in caplog.text
    assert statuses(manager.status()) == ["failed"]


def test_none_is_an_answer_where_the_target_says_so(cache, caplog):
    def hides(original, x):
        original(x)

    manager, _ = applied(target("attend", factory=around(hides), answers_none=True))
    assert [cache.attend(1) for _ in range(4)] == [None] * 4
    assert statuses(manager.status()) == ["applied"]
    assert caplog.records == []


def test_none_is_an_answer_where_the_original_may_give_it(fake):
    fake.write("fake_lm/find.py", "def find(x):\n    if x:\n        return x\n")
    find = load("fake_lm.find")
    manager, _ = applied(target("find", "fake_lm.find", factory=around(lambda find, x: None)))
    assert find.find(1) is None
    assert statuses(manager.status()) == ["applied"]


RETURNS = """
import math

def attend(cache, x):
    return {}

def tuples(x):
    return x, x

def maybe(x):
    return x or None

class Made:
    pass

class Linear:
    def __call__(self, x):
        x = x + x
        return x

class Cache:
    def __init__(self):
        self.linear = Linear()

    def fetch(self):
        return tuples(self)

    def find(self):
        return maybe(self)
"""


@pytest.mark.parametrize(
    ("returned", "owes"),
    [
        ("cache.fetch()", True),  # as BatchKVCache.update_and_fetch
        ("cache.linear(x)", True),
        ("Made()", True),
        ("tuples(x) if x else cache.fetch()", True),
        ("cache.fetch() or tuples(x)", True),
        ("[attend(cache, x) for _ in x]", True),
        ("cache.find()", False),
        ("cache.no_such_thing()", False),
        ("cache.fetch() if x else maybe(x)", False),
        ("tuples(x) if x else None", False),
        ("math.sqrt(x)", False),
        ("(lambda: tuples(x))()", False),
        ("x()", False),
        ("attend(cache, x)", False),
    ],
)
def test_what_another_function_gave_is_followed(fake, returned, owes):
    fake.write("fake_lm/returns.py", RETURNS.format(returned))
    module = load("fake_lm.returns")
    assert gives_a_value(module.attend, (module.Cache(), 1)) is owes


def test_none_of_a_layer_is_a_failure_where_the_release_returns_what_its_method_gives(fake, caplog):
    fake.write("fake_lm/returns.py", RETURNS.format("cache.fetch()"))
    module = load("fake_lm.returns")
    manager, _ = applied(
        target("Cache.fetch", "fake_lm.returns", factory=around(lambda fetch, cache: None))
    )
    made = module.Cache()
    assert [made.fetch() for _ in range(3)] == [(made, made)] * 3
    assert statuses(manager.status()) == ["failed"]


@pytest.mark.parametrize("error", [SystemExit, MemoryError, RecursionError])
def test_no_error_of_a_layer_ends_the_host(cache, caplog, error):
    def fatal(original, x):
        raise error("on purpose")

    manager, _ = applied(target("attend", factory=around(fatal)))
    assert [cache.attend(1) for _ in range(4)] == [2] * 4
    assert f"{error.__name__}: on purpose" in caplog.text
    assert statuses(manager.status()) == ["failed"]


def test_an_exit_of_a_layer_that_touched_state_is_an_error_of_the_call(cache):
    def leaves(original, cache, n):
        original(cache, n + 1)
        raise SystemExit(3)

    applied(target("Cache.update", factory=around(leaves)))
    with pytest.raises(mlx_patches.MlxPatchesError, match="the patch fix of mlx_patches failed"):
        cache.Cache().update(1)


def without_end(original, x):
    return without_end(original, x)


@pytest.mark.parametrize("itself", [True, False])
def test_a_layer_that_calls_itself_without_end_is_skipped(cache, caplog, itself):
    wrapper = without_end if itself else lambda attend, x: cache.attend(x)
    manager, _ = applied(target("attend", factory=around(wrapper)))
    for count in (1, 2):
        assert cache.attend(1) == 2
        assert f"fix was skipped in this call of fake_lm.cache:attend ({count} of 3)" in caplog.text
        assert statuses(manager.status()) == ["applied"]
    assert cache.attend(1) == 2
    assert "fix was taken out: raised in fake_lm.cache:attend: RecursionError" in caplog.text
    assert len(caplog.records) == 3
    assert "Traceback" not in caplog.text  # of a thousand frames
    assert statuses(manager.status()) == ["failed"]
    assert cache.attend(1) == 2


@pytest.mark.parametrize("itself", [True, False])
def test_one_that_touches_state_each_time_fails_once(cache, caplog, itself):
    def fed_without_end(original, made, n):
        original(made, n)
        return fed_without_end(original, made, n) if itself else made.update(n)

    manager, _ = applied(target("Cache.update", factory=around(fed_without_end)))
    made = cache.Cache()
    with pytest.raises(RecursionError):
        made.update(1)
    (record,) = caplog.records
    assert "fix was taken out: raised in fake_lm.cache:Cache.update: Recursion" in record.message
    assert statuses(manager.status()) == ["failed"]
    assert cache.Cache().update(3) == 3


# -- layers that change what a getter returned ----------------------------------------------


def add_one(state, cache):
    return [*state, 1]


def add_two(state, cache):
    return [*state, 2]


def test_changes_run_innermost_first_and_beside_other_layers(cache):
    first, second, third = (
        patch_of(target("Cache.state", factory=factory), id=name)
        for name, factory in (
            ("first", after(add_one)),
            ("second", after(add_two)),
            ("third", around(lambda get, made: [*get(made), 3])),
        )
    )
    manager = manager_for(first, second, third)
    made = cache.Cache()
    for patch, state in (
        (first, [0, 1]),
        (second, [0, 1, 2]),
        (third, [0, 1, 2, 3]),
    ):
        manager.apply(patch)
        assert made.state == state
    manager.restore(["first"])
    assert made.state == [0, 2, 3]


def test_a_change_works_on_functions_and_methods_too(cache):
    change = after(lambda result, *args: result + 1)
    applied(target("Cache.update", factory=change), target("attend", factory=change))
    assert cache.Cache().update(3) == 4
    assert cache.attend(1) == 3


@pytest.mark.parametrize("beside", [after(add_two), around(lambda get, made: [*get(made), 2])])
def test_a_change_of_the_instances_that_have_an_attribute(cache, beside):
    first = patch_of(target("Cache.state", factory=after(add_one, only_with="mark")), id="first")
    second = patch_of(target("Cache.state", factory=beside), id="second")
    manager = manager_for(first, second)
    made = cache.Cache()
    for patch, without, with_mark in ((first, [0], [0, 1]), (second, [0, 2], [0, 1, 2])):
        manager.apply(patch)
        vars(made).pop("mark", None)
        assert made.state == without
        made.mark = True
        assert made.state == with_mark


def no_state(state, made):
    return None


def fails(state, made):
    raise ValueError("on purpose")


def leaves(state, made):
    raise SystemExit(3)


def itself_without_end(state, made):
    return itself_without_end(state, made)


def getter_without_end(state, made):
    return made.state


CHANGES = {
    no_state: "it returned None",
    fails: "ValueError: on purpose",
    leaves: "SystemExit: 3",
    itself_without_end: "RecursionError",
    getter_without_end: "RecursionError",
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_that_fails_leaves_what_the_release_returned(cache, change, caplog):
    manager, _ = applied(target("Cache.state", factory=after(change)))
    made = cache.Cache()
    for count in (1, 2):
        assert made.state == [0]
        assert f"fix was skipped in this call of fake_lm.cache:Cache.state ({count} of 3)" in (
            caplog.text
        )
        assert statuses(manager.status()) == ["applied"]
    assert [made.state for _ in range(3)] == [[0]] * 3
    assert len(caplog.records) == 3
    assert all(CHANGES[change] in record.message for record in caplog.records)
    assert statuses(manager.status()) == ["failed"]


@pytest.mark.parametrize("change", CHANGES)
def test_strict_raises_what_a_change_raised(cache, change, caplog):
    patch = patch_of(target("Cache.state", factory=after(change)))
    manager = Manager(Gate(matrix_for(patch)), strict=True)
    manager.apply(patch)
    with pytest.raises((ValueError, RecursionError, mlx_patches.MlxPatchesError)):
        cache.Cache().state  # noqa: B018
    assert statuses(manager.status()) == ["applied"]
    assert caplog.records == []


def test_none_is_a_change_where_the_target_says_so(cache):
    applied(target("Cache.state", factory=after(no_state), answers_none=True))
    assert cache.Cache().state is None


def test_a_release_that_calls_itself_without_end_is_no_failure(fake):
    fake.write("fake_lm/deep.py", "def deep(x):\n    return deep(x)\n")
    deep = load("fake_lm.deep")
    manager, _ = applied(target("deep", "fake_lm.deep", factory=around(lambda deep, x: deep(x))))
    with pytest.raises(RecursionError):
        deep.deep(1)
    assert statuses(manager.status()) == ["applied"]


def test_a_refusal_goes_to_the_host(cache, caplog):
    def refuses(original, x):
        raise refusal(ValueError("not here"))

    manager, _ = applied(target("attend", factory=around(refuses)))
    for _ in range(4):
        with pytest.raises(ValueError, match="not here"):
            cache.attend(1)
    assert statuses(manager.status()) == ["applied"]
    assert caplog.records == []


def test_an_error_that_is_raised_from_one_of_the_release_is_no_failure(cache):
    def explains(original, x):
        try:
            return original(x)
        except TypeError as error:
            raise ValueError("a number, please") from error

    manager, _ = applied(target("attend", factory=around(explains)))
    for _ in range(4):
        with pytest.raises(ValueError, match="a number"):
            cache.attend("x")
    assert statuses(manager.status()) == ["applied"]


def test_another_threads_call_does_not_count_as_this_ones(cache):
    """A layer fails before it calls the original: it falls back, whatever other threads call."""
    inside, entered = threading.Event(), threading.Event()

    def waits(original, x):
        if x == 1:
            inside.set()
            assert entered.wait(10)
            raise ValueError("on purpose")
        return marked(original, x)

    manager, _ = applied(target("attend", factory=around(waits)))
    found = []
    thread = threading.Thread(target=lambda: found.append(cache.attend(1)))
    thread.start()
    assert inside.wait(10)
    assert cache.attend(2) == ("patched", 3)
    entered.set()
    thread.join(10)
    assert found == [2]
    assert statuses(manager.status()) == ["applied"]


def test_an_inner_call_of_the_same_site_does_not_count_as_the_outer_ones(cache):
    def inner_first(original, made, n):
        if n == 5:
            cache.Cache().update(1)  # the same site, on another object
            raise ValueError("on purpose")
        return original(made, n)

    manager, _ = applied(target("Cache.update", factory=around(inner_first)))
    made = cache.Cache()
    assert made.update(5) == 5
    assert statuses(manager.status()) == ["applied"]


def test_an_error_of_the_release_is_no_fault_of_the_patch(cache):
    manager, _ = applied("Cache.update", "attend")
    with pytest.raises(TypeError) as raised:
        cache.Cache().update("x")
    assert raised.value.__context__ is None
    with pytest.raises(TypeError):
        cache.attend("x")
    assert statuses(manager.status()) == ["applied", "applied"]


def test_where_the_original_raises_too_its_error_is_the_hosts(cache):
    """A wrong call raises the same error as without the patch."""

    def narrow(original, cache, n):
        return original(cache, n)

    manager, _ = applied(target("Cache.update", factory=around(narrow)))
    with pytest.raises(TypeError, match=r"Cache\.update\(\) got an unexpected") as raised:
        cache.Cache().update(1, other=2)
    assert raised.value.__context__ is None
    assert statuses(manager.status()) == ["applied"]


def test_an_interrupt_is_no_failure(cache):
    def interrupted(original, *args):
        raise KeyboardInterrupt

    manager, _ = applied(target("attend", factory=around(interrupted)))
    with pytest.raises(KeyboardInterrupt):
        cache.attend(1)
    assert statuses(manager.status()) == ["applied"]


@pytest.mark.parametrize("factory", [EARLY, LATE])
def test_strict_raises_and_keeps_the_patch(cache, factory, caplog):
    patch = patch_of(target("Cache.update", factory=factory))
    manager = Manager(Gate(matrix_for(patch)), strict=True)
    manager.apply(patch)
    made = cache.Cache()
    for _ in range(2):
        with pytest.raises(ValueError, match="too") as raised:
            made.update(1)
        (note,) = raised.value.__notes__
        assert note == "raised by the patch fix of mlx_patches in fake_lm.cache:Cache.update"
    assert made.offset == (2 if factory is LATE else 0)
    assert statuses(manager.status()) == ["applied"]
    assert caplog.records == []


def test_strict_raises_an_exit_as_an_error_that_names_the_patch(cache):
    def leaves(original, cache, n):
        raise SystemExit(3)

    patch = patch_of(target("Cache.update", factory=around(leaves)))
    Manager(Gate(matrix_for(patch)), strict=True).apply(patch)
    said = r"the patch fix of mlx_patches failed in fake_lm.cache:Cache.update: SystemExit\(3\)"
    with pytest.raises(mlx_patches.MlxPatchesError, match=said):
        cache.Cache().update(1)


def test_strict_leaves_the_releases_own_errors_as_they_are(cache):
    patch = patch_of("attend")
    Manager(Gate(matrix_for(patch)), strict=True).apply(patch)
    with pytest.raises(TypeError) as raised:
        cache.attend("x")
    assert not hasattr(raised.value, "__notes__")


def test_what_a_patch_adds_may_raise(cache):
    def extra(instance):
        raise ValueError("on purpose")

    adding = target(
        "Cache.extra",
        factory=lambda original: extra,
        defines_new_attribute=True,
        fingerprint_of=("Cache.update",),
    )
    manager, _ = applied(adding)
    with pytest.raises(ValueError, match="on purpose"):
        cache.Cache().extra()
    assert statuses(manager.status()) == ["applied"]


def test_attributes_that_a_patch_adds_are_not_slowed_down(cache):
    read = Attribute("offset", lambda instance: 1)
    applied(
        target(
            "Cache.offset",
            factory=lambda original: read,
            defines_new_attribute=True,
            fingerprint_of=("Cache.update",),
        )
    )
    assert vars(cache.Cache)["offset"] is read


def test_restored_it_gets_another_chance(cache):
    fail = [True]

    def sometimes(original, *args):
        if fail:
            raise ValueError("on purpose")
        return marked(original, *args)

    manager, patch = applied(target("attend", factory=around(sometimes)))
    assert [cache.attend(1) for _ in range(3)] == [2] * 3
    fail.clear()
    assert statuses(manager.apply(patch)) == ["failed"]
    assert cache.attend(1) == 2
    manager.restore()
    assert statuses(manager.apply(patch)) == ["applied"]
    assert cache.attend(1) == ("patched", 2)


def test_what_is_imported_later_does_not_bring_it_back(fake):
    patch = patch_of(target("attend", factory=EARLY), target("Model.__call__", "fake_lm.model"))
    session = session_for(patch)
    session.apply(["fix"], None, strict=False, dry_run=False)
    assert [load("fake_lm.cache").attend(1) for _ in range(3)] == [2] * 3
    assert load("fake_lm.model").Model()(1) == 2
    assert statuses(session.status()) == ["failed", "failed"]
    session.restore(None)


def test_whoever_holds_the_replacement_has_the_original_then(cache):
    """A closure or a list keeps the replacement, which calls the original after a withdrawal."""
    manager, _ = applied(target("attend", factory=EARLY), target("Cache.update"))
    held, method = cache.attend, cache.Cache.update

    @functools.wraps(held)
    def on_top(x):
        return held(x)

    cache.attend = on_top
    assert [cache.attend(1) for _ in range(3)] == [2] * 3
    assert statuses(manager.status()) == ["failed", "failed"]
    assert (held(1), method(cache.Cache(), 1)) == (2, 1)


def test_of_two_patches_only_the_one_that_raised_is_taken_out(cache):
    under = patch_of(target("attend"), id="under")
    over = patch_of(target("attend", factory=EARLY), id="over")
    manager = manager_for(under, over)
    manager.apply(under)
    manager.apply(over)
    assert [cache.attend(1) for _ in range(4)] == [("patched", 2)] * 4
    assert statuses(manager.status()) == ["applied", "failed"]


def test_the_lower_of_two_patches_falls_back_alone(cache):
    under = patch_of(target("attend", factory=EARLY), id="under")
    over = patch_of(target("attend"), id="over")
    manager = manager_for(under, over)
    manager.apply(under)
    manager.apply(over)
    assert [cache.attend(1) for _ in range(4)] == [("patched", 2)] * 4
    assert statuses(manager.status()) == ["failed", "applied"]
    manager.restore()
    assert cache.attend(1) == 2


def test_many_threads_fail_at_once_and_it_is_said_three_times(cache, caplog):
    together = threading.Barrier(8)

    def failing(original, *args):
        together.wait(10)
        raise ValueError("on purpose")

    manager, _ = applied(target("attend", factory=around(failing)))
    attend, found = cache.attend, []
    threads = [threading.Thread(target=lambda: found.append(attend(1))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert found == [2] * 8
    assert statuses(manager.status()) == ["failed"]
    assert len(caplog.records) == 3


def test_a_third_party_that_unwraps_gets_the_releases_own(cache):
    original = vars(cache.Cache)["update"]
    manager, _ = applied("Cache.update")
    assert cache.Cache.update.__wrapped__ is original
    cache.Cache.update = cache.Cache.update.__wrapped__
    assert statuses(manager.status()) == ["lost"]
    manager.restore()
    assert vars(cache.Cache)["update"] is original


def test_a_factory_sees_the_module_and_the_signature_of_the_original(cache):
    seen = []

    def factory(original):
        own = inspect.unwrap(original)
        seen.append((own.__globals__, inspect.signature(original), original.__name__))
        seen.append(own)
        return around(marked)(original)

    original = cache.attend
    applied(target("attend", factory=factory))
    assert seen[0] == (vars(cache), inspect.signature(original), "attend")
    assert seen[0][0] is vars(cache)
    assert seen[1] is original
    assert cache.attend(1) == ("patched", 2)


def test_a_wrapper_below_that_wants_its_instance_gets_it(cache):
    """wrapt passes the instance to a wrapper only if the wrapper was bound."""
    seen = []

    @wrapt.decorator
    def theirs(wrapped, instance, args, kwargs):
        seen.append(instance)
        return wrapped(*args, **kwargs)

    cache.Cache.update = below = theirs(vars(cache.Cache)["update"])
    manager, _ = applied("Cache.update")
    made = cache.Cache()
    assert made.update(2) == ("patched", 2)
    assert seen == [made]
    manager.restore()
    assert vars(cache.Cache)["update"] is below


def test_a_static_method_in_an_object_below_has_no_instance(cache):
    @wrapt.decorator
    def theirs(wrapped, instance, args, kwargs):
        return wrapped(*args, **kwargs)

    cache.Cache.twice = staticmethod(theirs(cache.Cache.twice))
    manager, _ = applied("Cache.twice")
    assert cache.Cache.twice(n=2) == ("patched", 4)
    manager.restore()


def test_where_nothing_can_be_put_back_the_patch_is_off_all_the_same(cache, monkeypatch):
    def refuse(site, value):
        raise TypeError("frozen")

    manager, _ = applied("Cache.update", target("attend", factory=EARLY))
    monkeypatch.setattr(Site, "_put", refuse)
    assert [cache.attend(1) for _ in range(4)] == [2] * 4
    assert cache.Cache().update(1) == 1
    assert statuses(manager.status()) == ["failed", "failed"]


def test_errors_keep_no_cache_alive(cache, monkeypatch):
    # pytest keeps log records, which hold tracebacks.
    monkeypatch.setattr(logging.getLogger("mlx_patches"), "disabled", True)
    applied(target("Cache.update", factory=EARLY))
    made = cache.Cache()
    gone = weakref.ref(made)
    gc.disable()
    try:
        made.update(1)
        del made
        assert gone() is None
    finally:
        gc.enable()


# -- a probe never measures the fallback of a patch that failed --------------------------------


def seems_fine(target):
    assert load("fake_lm.cache").attend(1) == 2
    return Result(red=False, detail="right")


@pytest.mark.parametrize(("factory", "verdict"), [(EARLY, "red"), (lambda attend: same, "green")])
def test_a_probe_is_red_where_the_patch_raised(cache, factory, verdict):
    patch = patch_of(target("attend", factory=factory))
    patch = patch._replace(probe=f"{__name__}:seems_fine")
    manager = manager_for(patch)
    row = child.probe_target(patch, patch.targets[0], manager)
    assert row["verdict"] == verdict
    assert ("raised in fake_lm.cache:attend" in row["detail"]) == (verdict == "red")
    manager.restore()


def same(x):
    return x + 1


@pytest.mark.parametrize(("factory", "verdict"), [(EARLY, "red"), (lambda attend: same, "green")])
def test_a_cell_of_the_lab_is_red_where_a_patch_raised(fake, monkeypatch, factory, verdict):
    def scenario(model):
        assert load("fake_lm.cache").attend(1) == 2
        return Cell("green")

    patch = patch_of(target("attend", factory=factory))
    monkeypatch.setattr(activation, "_session", session_for(patch, always=["fix"]))
    scenarios = SimpleNamespace(SCENARIOS={"one": scenario})
    monkeypatch.setitem(sys.modules, "mlx_patches.lab.scenarios", scenarios)
    monkeypatch.setattr(lab, "device", lambda: "cpu")
    monkeypatch.setattr(lab, "built", lambda *arguments: (SimpleNamespace(dtype="float32"), ""))
    nothing = dict.fromkeys(("scenario", "config", "weights", "dtype", "variant"))
    options = Namespace(patched=True, every_patch=False, **nothing)
    out = io.StringIO()
    lab.run(Family("mlx-lm", "any"), options, out)
    assert json.loads(out.getvalue())["verdict"] == verdict
    mlx_patches.restore()


def test_the_public_status_and_the_audit_say_it(fake, monkeypatch):
    patch = patch_of(target("attend", factory=EARLY))
    monkeypatch.setattr(activation, "_session", session_for(patch))
    mlx_patches.apply(["fix"])
    assert [load("fake_lm.cache").attend(1) for _ in range(3)] == [2] * 3
    (outcome,) = mlx_patches.status()
    assert outcome.status == "failed"
    report = mlx_patches.audit()
    said = "taken out: raised in fake_lm.cache:attend: ValueError: too early"
    assert any(line.endswith(said) for line in report.findings)
    assert report.exit_code() == 1
