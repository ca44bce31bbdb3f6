import functools
import gc
import inspect
import io
import json
import logging
import re
import sys
import threading
import weakref
from argparse import Namespace
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import wrapt

import mlx_patches
from mlx_patches.activation import session as activation
from mlx_patches.core.blame import with_own_code
from mlx_patches.core.errors import refusal
from mlx_patches.core.failures import describe
from mlx_patches.core.handed import hand_over
from mlx_patches.core.patch import Attribute, around
from mlx_patches.core.site import Site
from mlx_patches.core.verbs import result
from mlx_patches.lab import Cell, Family
from mlx_patches.lab import child as lab
from mlx_patches.probes import Result, child

from .conftest import (
    apply_all,
    apply_patches,
    in_threads,
    load,
    manager_for,
    mark_result,
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


EARLY = around(early)


def apply_layer(wrapper, name="attend", **more):
    return apply_all(target(name, factory=around(wrapper)), **more)[0]


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
def test_failing_layer_falls_back(cache, name, caplog):
    call, expected = kinds(cache)[name]
    before = dict(vars(cache.Cache)), cache.attend
    manager, patch = apply_all(target(name, factory=EARLY), "attend")
    path = f"fake_lm.cache:{name}"
    with caplog.at_level(logging.WARNING, "mlx_patches"):
        assert [call() for _ in range(10)] == [expected] * 10
    (record,) = caplog.records
    message = f"fix failed in this call of {path}; the release's own code answered: ValueError: too"
    assert message in record.message
    assert __name__ in record.message  # where it was raised
    assert str(manager.failures["fix"]) == (
        f"failed in 10 calls, last: ValueError: too early in {path}"
    )
    assert not manager.withdrawn
    # It never worked here: released defects remain.
    failing, fine = manager.status()
    assert (failing.status, fine.status) == ("failed", "applied")
    assert "it failed in 10 calls" in failing.reason
    assert failing.finding
    manager.restore()
    assert (dict(vars(cache.Cache)), cache.attend) == before
    assert statuses(manager.apply(patch)) == ["applied", "applied"]
    assert not manager.failures


@pytest.mark.parametrize("first", [True, False])
def test_success_is_remembered(cache, first):
    """A patch that works is in effect, however many odd calls it fails in."""

    def fails_on_five(original, x):
        if x == 5:
            raise ValueError("five")
        return mark_result(original, x)

    manager = apply_layer(fails_on_five)
    if first:
        assert cache.attend(1) == ("patched", 2)
    assert [cache.attend(5) for _ in range(50)] == [6] * 50
    assert statuses(manager.status()) == ["applied" if first else "failed"]
    assert cache.attend(1) == ("patched", 2)
    (outcome,) = manager.status()
    assert outcome.status == "applied"
    assert "it failed in 50 calls, last: ValueError: five" in outcome.reason


def test_failing_setter_falls_back(cache):
    def factory(original):
        def put(instance, value):
            raise ValueError("on purpose")

        return property(original.fget, put)

    manager, _ = apply_all(target("Cache.state", factory=factory))
    made = cache.Cache()
    for value in (7, 8, 9):
        made.state = [value]
        assert made.offset == value
    assert manager.failures["fix"].count == 3


def adds(original, cache, n):
    return original(cache, n, other=2)


def inner_first(original, made, n):
    if n == 5:
        type(made)().update(1)  # the same site, on another object
        raise ValueError("on purpose")
    return original(made, n)


@pytest.mark.parametrize(
    ("wrapper", "message"),
    [
        (late, "the call got the release's result: ValueError: too late"),
        (adds, "the release's own code answered: TypeError"),
        (inner_first, "the release's own code answered: ValueError: on purpose"),
    ],
)
def test_failing_layer_leaves_state(cache, caplog, wrapper, message):
    manager = apply_layer(wrapper, "Cache.update")
    made = cache.Cache()
    assert (made.update(5), made.offset) == (5, 5)
    assert f"; {message}" in caplog.text
    assert statuses(manager.status()) == ["applied"]
    assert [made.update(5) for _ in range(3)] == [10, 15, 20]
    assert manager.failures["fix"].count == 4
    assert not manager.withdrawn


def twice(original, cache, n):
    original(cache, n)
    original(cache, n)
    raise ValueError("too late")


def with_other_arguments(original, cache, n):
    original(cache, n + 1)
    raise ValueError("too late")


@pytest.mark.parametrize(("wrapper", "step"), [(twice, 6), (with_other_arguments, 4)])
def test_always_failing_patch_is_withdrawn(cache, caplog, wrapper, step):
    """State may have changed, so the call gets the error, and the patch is taken out."""
    original = cache.Cache.update
    manager, patch = apply_all(target("Cache.update", factory=around(wrapper)), "attend")
    made = cache.Cache()
    with pytest.raises(ValueError, match="too late"):
        made.update(3)
    assert made.offset == step
    assert "fix was withdrawn, since it failed in 1 call, last: ValueError: too late" in (
        caplog.text
    )
    assert statuses(manager.status()) == ["failed", "failed"]
    assert cache.Cache.update is original
    assert made.update(3) == step + 3
    assert statuses(manager.apply(patch)) == ["failed", "failed"]


def test_working_patch_is_not_withdrawn(cache):
    def ends_fives(original, made, n):
        original(made, n + 1)
        if n == 5:
            raise ValueError("five")
        return n

    manager = apply_layer(ends_fives, "Cache.update")
    made = cache.Cache()
    assert made.update(1) == 1
    for _ in range(10):
        with pytest.raises(ValueError, match="five"):
            made.update(5)
    assert not manager.withdrawn
    assert statuses(manager.status()) == ["applied"]


@pytest.mark.parametrize("enters", [False, True])
def test_none_instead_of_value_is_failure(cache, caplog, enters):
    def forgets(original, x):
        if enters:
            original(x)

    manager = apply_layer(forgets)
    assert [cache.attend(1) for _ in range(3)] == [2, 2, 2]
    answer = "the call got the release's result" if enters else "the release's own code answered"
    assert f"; {answer}: None instead of a value" in caplog.text
    assert manager.failures["fix"].count == 3


def empties(original, held) -> None:
    """Replaces a procedure, as declared."""


def forgets_to_return(original, held):
    """Seems to replace a procedure."""


@pytest.mark.parametrize(
    ("wrapper", "answers_none", "is_declared"),
    [(empties, False, True), (forgets_to_return, True, True), (forgets_to_return, False, False)],
)
def test_replaced_procedure_is_declared(fake, wrapper, answers_none, is_declared):
    """If not, the original runs as well, and the patch's tests fail."""
    fake.write("fake_lm/lists.py", "def empty(held):\n    held.append('the original')\n")
    lists = load("fake_lm.lists")
    replaced = target("empty", "fake_lm.lists", around(wrapper), answers_none=answers_none)
    manager, _ = apply_all(replaced)
    held = []
    assert lists.empty(held) is None
    assert held == ([] if is_declared else ["the original"])
    assert bool(manager.failures) != is_declared


@pytest.mark.parametrize("name", ["Cache.__init__", "Cache.state"])
def test_constructors_and_setters_return_none(fake, name):
    fake.write(
        "fake_lm/made.py",
        "class Cache:\n"
        "    def __init__(self):\n        self.held = ['the original']\n"
        "    @property\n    def state(self):\n        return self.held\n"
        "    @state.setter\n    def state(self, value):\n        self.held = value\n",
    )
    made = load("fake_lm.made")

    def replace(original):
        if isinstance(original, property):
            return property(original.fget, lambda cache, value: setattr(cache, "held", ["ours"]))
        return lambda cache: setattr(cache, "held", ["ours"])

    manager, _ = apply_all(target(name, "fake_lm.made", factory=replace))
    one = made.Cache()
    one.state = 5
    assert not manager.failures
    assert one.held == (["ours"] if name == "Cache.state" else 5)


HANDED = """
def load(get):
    return get()

def call(get, state):
    state.append(1)
    return get()
"""


def hands_over(original, get, *more):
    def own():
        raise TypeError("the patch's own error")

    return original(own, *more)


def test_error_of_handed_over_object(fake, caplog):
    fake.write("fake_lm/handed.py", HANDED)
    handed = load("fake_lm.handed")
    manager, _ = apply_all(target("call", "fake_lm.handed", factory=around(hands_over)))
    state = []
    with pytest.raises(TypeError, match="own error"):
        handed.call(lambda: 42, state)
    assert state == [1]  # the original never runs twice in a call
    assert handed.call(lambda: 42, state) == 42
    assert statuses(manager.status()) == ["failed"]
    assert "fix was withdrawn, since it failed in 1 call, last: TypeError" in caplog.text


GENERATES = """
def generate(get):
    for _ in range(3):
        yield get(1)
"""


def test_handed_over_object_in_generator(fake, caplog):
    fake.write("fake_lm/handed.py", GENERATES)
    handed = load("fake_lm.handed")

    def broken(released, x):
        raise SystemExit(3)

    manager, _ = apply_all(
        target(
            "generate",
            "fake_lm.handed",
            factory=around(lambda generate, get: generate(hand_over("fix", broken, get))),
        )
    )
    assert list(handed.generate(lambda x: x + 41)) == [42] * 3
    assert manager.failures["fix"].count == 3
    assert "fix failed in this call of what it hands to the release; the release's own" in (
        caplog.text
    )
    with pytest.raises(TypeError) as raised:
        list(handed.generate(len))
    assert raised.value.__context__ is None
    assert manager.failures["fix"].count == 3


def test_host_callback_error_is_raised(fake):
    fake.write("fake_lm/handed.py", HANDED)
    fake.write("fake_host.py", "def broken():\n    raise KeyError('the host\\'s')\n")
    handed, host = load("fake_lm.handed"), load("fake_host")
    manager, _ = apply_all(
        target("load", "fake_lm.handed", factory=around(lambda load, get: load(get)))
    )
    for _ in range(5):
        with pytest.raises(KeyError):
            handed.load(host.broken)
    assert not manager.failures


def test_host_retry_during_release_error(cache):
    """The first error is the context of the layer's: the layer falls back all the same."""

    def narrow(original, x):
        if x == 5:
            raise ValueError("the layer's")
        return original(x)

    manager = apply_layer(narrow)

    def host():
        try:
            cache.attend("x")
        except TypeError:
            return cache.attend(5)

    assert [host() for _ in range(5)] == [6] * 5
    assert manager.failures["fix"].count == 5


def after_the_call(original, *args):
    original(*args)
    raise KeyError("too late")


@pytest.mark.parametrize("wrapper", [early, after_the_call])
def test_failing_security_patch_refuses(cache, caplog, wrapper):
    manager = apply_layer(wrapper, security=True)
    for _ in range(10):
        with pytest.raises(ValueError, match="the patch fix of mlx_patches could not check"):
            cache.attend(1)
    assert not manager.withdrawn
    assert manager.failures["fix"].count == 10
    assert "fix failed in this call of fake_lm.cache:attend; the call was refused" in caplog.text


def raising(error):
    def layer(original, *args):
        raise error

    return layer


def its_own_cause(original, x):
    error = ValueError("on purpose")
    raise error from error


def without_end(original, x):
    return without_end(original, x)


@pytest.mark.parametrize(
    ("name", "wrapper", "message"),
    [
        ("attend", raising(SystemExit("on purpose")), "SystemExit: on purpose"),
        ("attend", raising(MemoryError("on purpose")), "MemoryError: on purpose"),
        ("attend", raising(RecursionError("on purpose")), "RecursionError: on purpose"),
        ("attend", its_own_cause, "ValueError: on purpose"),
        ("attend", without_end, "RecursionError"),
        ("attend", lambda attend, x: load("fake_lm.cache").attend(x), "RecursionError"),
        ("Cache.state", early, "ValueError: too early"),
        ("Cache.state", lambda get, made: made.state, "RecursionError"),
        ("Cache.state", raising(SystemExit(3)), "SystemExit: 3"),
    ],
)
def test_early_failures_fall_back(cache, caplog, name, wrapper, message):
    call, expected = kinds(cache)[name]
    manager = apply_layer(wrapper, name)
    assert [call() for _ in range(4)] == [expected] * 4
    (record,) = caplog.records
    assert f"; the release's own code answered: {message}" in record.message
    assert manager.failures["fix"].count == 4


def leaves(original, cache, n):
    original(cache, n + 1)
    raise SystemExit(3)


@pytest.mark.parametrize(("wrapper", "strict"), [(leaves, False), (raising(SystemExit(3)), True)])
def test_exit_is_an_error_that_names_the_patch(cache, wrapper, strict):
    apply_layer(wrapper, "Cache.update", strict=strict)
    message = r"the patch fix of mlx_patches failed in fake_lm.cache:Cache.update: SystemExit\(3\)"
    with pytest.raises(mlx_patches.MlxPatchesError, match=message):
        cache.Cache().update(1)


@pytest.mark.parametrize("itself", [True, False])
def test_recursion_after_state_change_fails_once(cache, caplog, itself):
    def feed_without_end(original, made, n):
        original(made, n)
        return feed_without_end(original, made, n) if itself else made.update(n)

    manager = apply_layer(feed_without_end, "Cache.update")
    with pytest.raises(RecursionError):
        cache.Cache().update(1)
    (record,) = caplog.records
    assert "fix was withdrawn, since it failed in 1 call, last: RecursionError" in record.message
    assert manager.failures["fix"].count == 1


def explains(original, x):
    try:
        return original(x)
    except TypeError as error:
        raise ValueError("a number, please") from error


def wide(original, cache, n, **more):
    return original(cache, n + 1, **more)


def narrow(original, cache, n):
    return original(cache, n)


def wrongly(cache):
    """A call of ``Cache.update`` that both the layer and the original reject."""
    cache.Cache().update(1, other=2)


@pytest.mark.parametrize(
    ("name", "wrapper", "call", "error", "message"),
    [
        # A refusal, an interrupt, and an error raised from one of the release.
        ("attend", raising(refusal(ValueError("not here"))), 1, ValueError, "not here"),
        ("attend", raising(KeyboardInterrupt()), 1, KeyboardInterrupt, ""),
        ("attend", explains, "x", ValueError, "a number"),
        # The release's own errors, as without the patch.
        ("attend", mark_result, "x", TypeError, "concatenate str"),
        ("Cache.update", mark_result, lambda cache: cache.Cache().update("x"), TypeError, "for +="),
        ("Cache.update", narrow, wrongly, TypeError, "Cache.update() got an unexpected"),
        # The original did not start, although the layer called it.
        ("Cache.update", wide, wrongly, TypeError, "Cache.update() got an unexpected"),
    ],
)
def test_other_errors_reach_host(cache, caplog, name, wrapper, call, error, message):
    # A security patch ignores requests that the release rejects.
    manager = apply_layer(wrapper, name, security=(name, wrapper) == ("attend", mark_result))
    for _ in range(5):
        with pytest.raises(error, match=re.escape(message)) as raised:
            call(cache) if callable(call) else cache.attend(call)
        assert error is not TypeError or raised.value.__context__ is None
    assert not manager.failures
    assert statuses(manager.status()) == ["applied"]
    assert caplog.records == []


def test_release_recursion_is_no_failure(fake):
    fake.write("fake_lm/deep.py", "def deep(x):\n    return deep(x)\n")
    deep = load("fake_lm.deep")
    manager, _ = apply_all(target("deep", "fake_lm.deep", factory=around(lambda deep, x: deep(x))))
    with pytest.raises(RecursionError):
        deep.deep(1)
    assert statuses(manager.status()) == ["applied"]


def test_threads_are_separate(cache):
    """A layer fails before it calls the original: it falls back, whatever other threads call."""
    inside, entered = threading.Event(), threading.Event()

    def waits(original, x):
        if x == 1:
            inside.set()
            assert entered.wait(10)
            raise ValueError("on purpose")
        return mark_result(original, x)

    manager = apply_layer(waits)
    found = []
    thread = threading.Thread(target=lambda: found.append(cache.attend(1)))
    thread.start()
    assert inside.wait(10)
    assert cache.attend(2) == ("patched", 3)
    entered.set()
    thread.join(10)
    assert found == [2]
    assert statuses(manager.status()) == ["applied"]


@pytest.mark.parametrize("wrapper", [early, late])
def test_strict_raises_and_keeps_patch(cache, wrapper, caplog):
    manager = apply_layer(wrapper, "Cache.update", strict=True)
    made = cache.Cache()
    for _ in range(2):
        with pytest.raises(ValueError, match="too") as raised:
            made.update(1)
        (note,) = raised.value.__notes__
        assert note == "raised by the patch fix of mlx_patches in fake_lm.cache:Cache.update"
    assert made.offset == (2 if wrapper is late else 0)
    assert statuses(manager.status()) == ["applied"]
    assert caplog.records == []


def test_added_method_may_raise(cache):
    def extra(instance):
        raise ValueError("on purpose")

    adding = target(
        "Cache.extra",
        factory=lambda original: extra,
        defines_new_attribute=True,
        fingerprint_of=("Cache.update",),
    )
    manager, _ = apply_all(adding)
    with pytest.raises(ValueError, match="on purpose"):
        cache.Cache().extra()
    assert statuses(manager.status()) == ["applied"]


@pytest.mark.parametrize("kind", [classmethod, lambda function: function])
def test_failing_override_falls_back(fake, kind):
    decorator = "    @classmethod\n" if kind is classmethod else ""
    source = f"class Base:\n{decorator}    def size(one, x):\n        return x\n\n"
    fake.write("fake_lm/bases.py", source + "class Cache(Base):\n    pass\n")
    bases = load("fake_lm.bases")
    manager, _ = apply_all(
        target(
            "Cache.size",
            "fake_lm.bases",
            factory=lambda original: kind(breaks),
            defines_new_attribute=True,
            fingerprint_of=("Base.size",),
        )
    )
    assert [bases.Cache().size(3) for _ in range(5)] == [3] * 5
    assert manager.failures["fix"].count == 5
    manager.restore()
    assert "size" not in vars(bases.Cache)


def breaks(*args):
    raise ValueError("on purpose")


ATTRIBUTES = {
    "read": {"read": breaks},
    "write": {"write": breaks},
    "put": {"put": breaks},
    "all": {"read": breaks, "put": breaks},
    "none": {"read": lambda instance: None},
}


def adding(made, **more):
    return target(
        "Cache.offset",
        factory=lambda original: made,
        defines_new_attribute=True,
        fingerprint_of=("Cache.update",),
        **more,
    )


@pytest.mark.parametrize("kind", ATTRIBUTES)
def test_failing_attribute_has_plain_value(cache, kind, caplog):
    manager, _ = apply_all(adding(Attribute("offset", **ATTRIBUTES[kind])))
    made = cache.Cache()
    for value in (7, 8, 9):
        made.offset = value
        assert made.offset == value
    assert manager.failures["fix"].count >= 3
    del made.offset
    if kind != "none":
        with pytest.raises(AttributeError):
            made.offset  # noqa: B018
    message = "None instead of a value" if kind == "none" else "ValueError: on purpose"
    assert f"; the plain value was used: {message}" in caplog.text
    assert not manager.withdrawn
    manager.restore()


def unknown(instance) -> int | None:
    return None


def test_optional_attribute(cache):
    manager, _ = apply_all(adding(Attribute("offset", unknown)))
    assert cache.Cache().offset is None
    assert not manager.failures


def refuses(value):
    raise refusal(ValueError("not here"))


@pytest.mark.parametrize(
    ("write", "security", "message"),
    [(refuses, True, "not here"), (refuses, False, "not here"), (breaks, True, "could not check")],
)
def test_attribute_can_refuse(cache, write, security, message):
    manager, _ = apply_all(adding(Attribute("offset", write=write)), security=security)
    made = cache.Cache.__new__(cache.Cache)
    for _ in range(5):
        with pytest.raises(ValueError, match=message):
            made.offset = 1
    assert "offset" not in vars(made)
    assert not manager.withdrawn
    assert bool(manager.failures) is (write is breaks)


def test_strict_attribute_raises(cache):
    apply_all(adding(Attribute("offset", breaks)), strict=True)
    made = cache.Cache()
    with pytest.raises(ValueError, match="on purpose"):
        made.offset  # noqa: B018


def test_plain_reader_is_native(cache):
    read = Attribute("offset", write=int)
    apply_all(adding(read))
    assert vars(cache.Cache)["offset"] is read
    assert isinstance(read.fget, functools.partial)


def test_unguarded_reader_costs_one_call(cache):
    read = Attribute("offset", unknown, guarded=False)
    apply_all(adding(read))
    assert read.fget is unknown
    assert cache.Cache().offset is None


def test_default_of_instance_attribute(cache):
    """A value that a patch adds to a class is read in C, and leaves with the patch."""
    manager, _ = apply_all(adding(0))
    assert vars(cache.Cache)["offset"] == cache.Cache.__new__(cache.Cache).offset == 0
    manager.restore()
    assert "offset" not in vars(cache.Cache)


def fail_once(cache):
    """Make the only layer of ``Cache.update`` fail at the end of a call."""
    with pytest.raises(ValueError, match="too late"):
        cache.Cache().update(1)


def test_restore_resets_failures(cache):
    manager, patch = apply_all(target("Cache.update", factory=around(twice)))
    fail_once(cache)
    assert statuses(manager.apply(patch)) == ["failed"]
    assert cache.Cache().update(1) == 1
    manager.restore()
    assert statuses(manager.apply(patch)) == ["applied"]
    assert not manager.failures


def test_later_import_keeps_withdrawal(fake):
    patch = patch_of(
        target("Cache.update", factory=around(twice)), target("Model.__call__", "fake_lm.model")
    )
    session = session_for(patch)
    session.apply(["fix"], None, strict=False, dry_run=False)
    fail_once(load("fake_lm.cache"))
    assert load("fake_lm.model").Model()(1) == 2
    assert statuses(session.status()) == ["failed", "failed"]
    session.restore(None)


def test_held_replacement_calls_original(cache):
    """A closure or list keeps the replacement, which calls the original after a withdrawal."""
    manager, _ = apply_all(target("Cache.update", factory=around(twice)), target("attend"))
    held, method = cache.attend, cache.Cache.update

    @functools.wraps(held)
    def on_top(x):
        return held(x)

    cache.attend = on_top
    fail_once(cache)
    assert statuses(manager.status()) == ["failed", "failed"]
    assert (held(1), method(cache.Cache(), 1)) == (2, 1)


@pytest.mark.parametrize("security", [False, True])
@pytest.mark.parametrize("fails", ["under", "over"])
def test_only_failing_patch_is_skipped(cache, fails, security):
    patches = [
        patch_of(
            target("attend", factory=EARLY if fails == id_ else None),
            id=id_,
            security=security and fails != id_,
        )
        for id_ in ("under", "over")
    ]
    manager = apply_patches(*patches)
    assert [cache.attend(1) for _ in range(4)] == [("patched", 2)] * 4
    found = {outcome.patch: outcome.status for outcome in manager.status()}
    assert found == {"under": "applied", "over": "applied"} | {fails: "failed"}
    manager.restore()
    assert cache.attend(1) == 2


def test_concurrent_failures_log_once(cache, caplog):
    together = threading.Barrier(8)

    def failing(original, *args):
        together.wait(10)
        raise ValueError("on purpose")

    manager = apply_layer(failing)
    attend, found = cache.attend, []
    in_threads([lambda: found.append(attend(1))] * 8)
    assert found == [2] * 8
    assert manager.failures["fix"].count == 8
    assert len(caplog.records) == 1


def test_error_message_is_escaped_and_cut(cache, caplog):
    def hostile(original, x):
        raise ValueError("\x1b[31mred\x07\r\nERROR a line of its own\n" + "A" * 100_000)

    manager = apply_layer(hostile)
    cache.attend(1)
    assert "\x1b" not in caplog.text
    assert len(caplog.text) < 1000
    assert len(caplog.text.splitlines()) == 1
    assert "\x1b" not in manager.status()[0].reason


def test_error_without_text():
    class Mute(Exception):
        def __str__(self):
            raise TypeError

    assert describe(Mute()) == "Mute"


CHECKS = {"raises": lambda x: breaks(), "leaves": lambda x: sys.exit(3)}


@pytest.mark.parametrize("check", CHECKS)
def test_failing_check_runs_layer(cache, check, caplog):
    manager, _ = apply_all(target("attend", when=CHECKS[check]))
    assert [cache.attend(1) for _ in range(4)] == [("patched", 2)] * 4
    assert manager.failures["fix"].count == 4
    assert "fix failed in this call of fake_lm.cache:attend; the patch ran without its check" in (
        caplog.text
    )
    assert not manager.withdrawn


def test_unwrapping_gives_original(cache):
    original = vars(cache.Cache)["update"]
    manager, _ = apply_all("Cache.update")
    assert cache.Cache.update.__wrapped__ is original
    cache.Cache.update = cache.Cache.update.__wrapped__
    assert statuses(manager.status()) == ["lost"]
    manager.restore()
    assert vars(cache.Cache)["update"] is original


def test_factory_sees_original(cache):
    seen = []

    def factory(original):
        own = inspect.unwrap(original)
        seen.append((own.__globals__, inspect.signature(original), original.__name__))
        seen.append(own)
        return around(mark_result)(original)

    original = cache.attend
    apply_all(target("attend", factory=factory))
    assert seen[0] == (vars(cache), inspect.signature(original), "attend")
    assert seen[0][0] is vars(cache)
    assert seen[1] is original
    assert cache.attend(1) == ("patched", 2)


def test_wrapper_below_gets_instance(cache):
    """wrapt passes the instance to a wrapper only if the wrapper was bound."""
    seen = []

    @wrapt.decorator
    def theirs(wrapped, instance, args, kwargs):
        seen.append(instance)
        return wrapped(*args, **kwargs)

    cache.Cache.update = below = theirs(vars(cache.Cache)["update"])
    manager, _ = apply_all("Cache.update")
    made = cache.Cache()
    assert made.update(2) == ("patched", 2)
    assert seen == [made]
    manager.restore()
    assert vars(cache.Cache)["update"] is below


def test_static_method_has_no_instance(cache):
    @wrapt.decorator
    def theirs(wrapped, instance, args, kwargs):
        return wrapped(*args, **kwargs)

    cache.Cache.twice = staticmethod(theirs(cache.Cache.twice))
    manager, _ = apply_all("Cache.twice")
    assert cache.Cache.twice(n=2) == ("patched", 4)
    manager.restore()


def test_failed_withdrawal_switches_patch_off(cache, monkeypatch):
    def refuse(site, value):
        raise TypeError("frozen")

    manager, _ = apply_all("attend", target("Cache.update", factory=around(twice)))
    monkeypatch.setattr(Site, "_set_attribute", refuse)
    fail_once(cache)
    assert cache.attend(1) == 2
    assert cache.Cache().update(1) == 1
    assert statuses(manager.status()) == ["failed", "failed"]


def test_errors_keep_no_cache_alive(cache, monkeypatch):
    # pytest keeps log records, which hold tracebacks.
    monkeypatch.setattr(logging.getLogger("mlx_patches"), "disabled", True)
    apply_all(target("Cache.update", factory=EARLY))
    made = cache.Cache()
    gone = weakref.ref(made)
    gc.disable()
    try:
        made.update(1)
        del made
        assert gone() is None
    finally:
        gc.enable()


def plumb(original, change, broken, *args):
    """The plumbing of a verb: patches differ in the function that they name."""
    if broken == "plumbing":
        raise ValueError("in the plumbing")
    released, original = original, None
    return released(*change(*args))


def keep(*args):
    return args


def crash(*args):
    raise ValueError("in the named function")


class Verb:
    def __init__(self, *given):
        self.given = given

    def run(self, *args):
        return plumb(*self.given, *args)

    __call__ = run


def in_closure(*given):
    def call(*args):
        return plumb(*given, *args)

    return call


def compile_verb(*given):
    scope = {"given": given, "plumb": plumb, "__name__": __name__}
    exec("def call(*args):\n    return plumb(*given, *args)", scope)
    return scope["call"]


FORMS = {
    "partial": lambda *given: functools.partial(plumb, *given),
    "partial of a partial": lambda *given: functools.partial(around(plumb)(given[0]), *given[1:]),
    "closure": in_closure,
    "method": lambda *given: Verb(*given).run,
    "object": Verb,
    "compiled": compile_verb,
}


@pytest.mark.parametrize("broken", ["plumbing", "named function"])
@pytest.mark.parametrize("name", ["attend", "Cache.state"])
@pytest.mark.parametrize("fails", ["under", "middle", "over"])
@pytest.mark.parametrize("form", FORMS)
def test_failing_layer_is_blamed_among_equal_code(cache, form, fails, name, broken):
    def factory(id_):
        def make(original):
            is_property = isinstance(original, property)
            function = original.fget if is_property else original
            change = crash if (id_, broken) == (fails, "named function") else keep
            made = FORMS[form](function, change, broken if id_ == fails else "")
            return property(made, original.fset) if is_property else made

        return make

    patches = [
        patch_of(target(name, factory=factory(id_)), id=id_) for id_ in ("under", "middle", "over")
    ]
    manager = apply_patches(*patches)
    call, expected = kinds(cache)[name]
    assert [call() for _ in range(3)] == [expected] * 3
    assert {id_: failures.count for id_, failures in manager.failures.items()} == {fails: 3}
    manager.restore()


def test_own_code_keeps_metadata():
    def layer(x, y=1, *, z: int = 2) -> int:
        """What it does."""
        return x + y + z

    layer.mark = 1
    made = with_own_code(layer)
    assert made.__code__ is not layer.__code__
    names = {*functools.WRAPPER_ASSIGNMENTS, "__defaults__", "__kwdefaults__", "__dict__"}
    assert [name for name in names if getattr(made, name) != getattr(layer, name)] == []
    assert made(1) == 4
    wrapper = wrapt.FunctionWrapper(layer, lambda wrapped, instance, args, kwargs: 5)
    assert with_own_code(wrapper) is wrapper


HUB = """
class NotFound(OSError):
    pass

def fetch(name):
    if name == "gone":
        try:
            raise KeyError(name)
        except KeyError as error:
            raise NotFound(name) from error
    return name
"""
LOADER = """
import fake_hub

def read_config(name):
    return fake_hub.fetch(name)

def load(name):
    return read_config(name)

def nested(name):
    return load(name)
"""


@pytest.fixture
def loader(fake):
    fake.write("fake_hub.py", HUB)
    fake.write("fake_lm/loader.py", LOADER)
    return load("fake_lm.loader")


def reads_first(load, name):
    """Calls another function of the release before the one that it wraps."""
    sys.modules["fake_lm.loader"].read_config(name)
    return load(name)


def reads_after(load, name):
    loaded = load("there")
    sys.modules["fake_lm.loader"].read_config(name)
    return loaded


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("security", [False, True])
@pytest.mark.parametrize("wrapper", [mark_result, reads_first, reads_after])
def test_release_error_is_no_failure(loader, wrapper, security, strict):
    """Not even one that a library raises from another error, nor below another function."""
    targets = [target(name, "fake_lm.loader", around(wrapper)) for name in ("load", "nested")]
    manager, _ = apply_all(*targets, security=security, strict=strict)
    for _ in range(6):
        for call in (loader.load, loader.nested):
            with pytest.raises(sys.modules["fake_hub"].NotFound) as raised:
                call("gone")
            assert not hasattr(raised.value, "__notes__")
    assert not manager.failures
    assert statuses(manager.status()) == ["applied", "applied"]


def test_error_before_original_is_failure(loader):
    manager, _ = apply_all(
        target("load", "fake_lm.loader", around(lambda load, name: reads_first(load, "gone")))
    )
    assert loader.load("there") == "there"
    assert manager.failures["fix"].count == 1


def test_library_error_is_layer_failure(loader):
    hub = sys.modules["fake_hub"]
    manager, _ = apply_all(
        target("load", "fake_lm.loader", around(lambda load, name: hub.fetch("gone"))),
        security=True,
    )
    with pytest.raises(ValueError, match="could not check this call"):
        loader.load("there")
    assert manager.failures["fix"].count == 1


def test_failure_at_inner_site_blames_its_patch(loader):
    def twice_then_fails(read, name):
        read(name)
        read(name)
        raise ValueError("below")

    guilty = patch_of(
        target("read_config", "fake_lm.loader", around(twice_then_fails)), id="guilty"
    )
    innocent = patch_of(target("load", "fake_lm.loader", around(mark_result)), id="innocent")
    manager = apply_patches(guilty, innocent)
    with pytest.raises(ValueError, match="below"):
        loader.load("there")
    assert {*manager.failures} == {"guilty"}
    manager.restore()


def test_passed_on_none_is_no_failure(cache):
    patches = [
        patch_of(target("attend", factory=around(layer)), id=id_)
        for id_, layer in {"under": lambda attend, x: None, "over": lambda f, x: f(x)}.items()
    ]
    manager = apply_patches(*patches)
    assert cache.attend(1) == 2
    assert {*manager.failures} == {"under"}
    manager.restore()


def seems_fine(target):
    assert load("fake_lm.cache").attend(1) == 2
    return Result(red=False, detail="right")


@pytest.mark.parametrize(("factory", "verdict"), [(EARLY, "red"), (lambda attend: same, "green")])
def test_failing_patch_turns_probe_red(cache, factory, verdict):
    patch = patch_of(target("attend", factory=factory))
    patch = patch._replace(probe=f"{__name__}:seems_fine")
    manager = manager_for(patch)
    row = child.probe_target(patch, patch.targets[0], manager)
    assert row["verdict"] == verdict
    assert ("too early in fake_lm.cache:attend" in row["detail"]) == (verdict == "red")
    manager.restore()


def same(x):
    return x + 1


@pytest.mark.parametrize(("factory", "verdict"), [(EARLY, "red"), (lambda attend: same, "green")])
def test_failing_patch_turns_lab_cell_red(fake, monkeypatch, factory, verdict):
    def scenario(model):
        assert load("fake_lm.cache").attend(1) == 2
        return Cell("green")

    patch = patch_of(target("attend", factory=factory))
    monkeypatch.setattr(activation, "_session", session_for(patch, always=["fix"]))
    scenarios = SimpleNamespace(SCENARIOS={"one": scenario})
    monkeypatch.setitem(sys.modules, "mlx_patches.lab.scenarios", scenarios)
    monkeypatch.setattr(lab, "device", lambda: "cpu")
    monkeypatch.setattr(
        lab, "build_family", lambda *arguments: (SimpleNamespace(dtype="float32"), "")
    )
    names = ("scenario", "config", "weights", "dtype", "variant", "device", "reference")
    nothing = dict.fromkeys(names)
    options = Namespace(patched=True, every_patch=False, **nothing)
    out = io.StringIO()
    lab.run(Family("mlx-lm", "any"), options, out)
    assert json.loads(out.getvalue())["verdict"] == verdict
    mlx_patches.restore()


def test_status_and_audit_report_failures(fake, monkeypatch):
    patch = patch_of(target("attend", factory=EARLY))
    monkeypatch.setattr(activation, "_session", session_for(patch))
    mlx_patches.apply(["fix"])
    assert [load("fake_lm.cache").attend(1) for _ in range(3)] == [2] * 3
    (outcome,) = mlx_patches.status()
    assert outcome.status == "failed"
    report = mlx_patches.audit()
    message = "it failed in 3 calls, last: ValueError: too early in fake_lm.cache:attend"
    assert any(line.endswith(message) for line in report.findings)
    assert report.exit_code() == 1


def test_function_is_compiled_by_many_threads_at_once():
    for _ in range(20):
        (target,) = result("toy_lm.cache:f", lambda result: result + 1)
        patched, barrier = target.factory(lambda one, two=2: one + two), threading.Barrier(8)

        def call(one, patched=patched, barrier=barrier):
            barrier.wait()
            return patched(one)

        with ThreadPoolExecutor(8) as pool:
            assert [*pool.map(call, range(8))] == [*range(3, 11)]
