"""Layers that wait for their site's first call: no module of a patch is imported before."""

from __future__ import annotations

import json
import logging
import sys
import threading

import pytest

from mlx_patches import MlxPatchesError
from mlx_patches.activation.session import Session
from mlx_patches.core.registry import Entry, Registry

from .conftest import load, matrix_for

PATCHES = """
from mlx_patches.core.patch import Patch, Target, around

def named(word):
    return around(lambda original, *args: (word, original(*args)))

def patch(id, *names):
    targets = tuple(Target("fake-lm", "fake_lm.cache", name, named(id)) for name in names)
    return Patch(id, f"{id} goes wrong", targets, "probes:none", __name__)
"""
DECLARED = "from patches_base import *\nPATCH = patch({id!r}, *{names!r})\n"


@pytest.fixture
def session(fake):
    """A function that makes a session of declared patches, each id in a module of its own."""
    fake.write("patches_base.py", PATCHES)

    def make(sources=(), **names):
        table = {}
        for id_, targets in names.items():
            source = dict(sources).get(id_, DECLARED.format(id=id_, names=targets))
            fake.write(f"patch_{id_}.py", source)
            rows = [
                ["fake-lm", "fake_lm.cache", name, [name], False, False, False] for name in targets
            ]
            row = {"summary": f"{id_} goes wrong", "probe": "probes:none", "optional": False}
            table[id_] = row | {"targets": rows}
        file = fake.root / "declarations.json"
        file.write_text(json.dumps(table))
        registry = Registry({id_: Entry(f"patch_{id_}") for id_ in names}, file)
        return Session(registry, matrix_for(*registry.each_declared()))

    return make


def imported():
    return sorted(name for name in sys.modules if name.startswith("patch_"))


def test_a_patch_is_imported_in_the_first_call(fake, session):
    cache, model = load("fake_lm.cache"), load("fake_lm.model")
    original = cache.attend
    made = session(one=["attend", "Cache.update", "Cache.make", "Cache.twice"])
    assert {str(o.status) for o in made.apply(["one"])} == {"applied"}
    assert {str(o.status) for o in made.status()} == {"applied"}
    assert imported() == []
    assert model.attend is cache.attend is not original
    live = cache.attend
    assert cache.attend(1) == ("one", 2)
    assert imported() == ["patch_one"]
    assert cache.attend is live
    assert model.Model()(1) == ("one", 2)
    assert cache.Cache().update(3) == ("one", 3)
    assert cache.Cache.make()[0] == "one"
    assert cache.Cache.twice(4) == cache.Cache().twice(4) == ("one", 8)
    made.restore()
    assert cache.attend is model.attend is original


def test_what_is_taken_out_before_its_first_call_is_never_imported(fake, session):
    cache = load("fake_lm.cache")
    original = cache.attend
    made = session(one=["attend"], two=["attend"])
    made.apply(["one", "two"])
    live = cache.attend
    made.restore(["one"])
    assert cache.attend is live
    assert cache.attend(1) == ("two", 2)
    assert imported() == ["patch_two"]
    made.apply(["one"])
    assert cache.attend(1) == ("two", ("one", 2))
    made.restore()
    assert cache.attend is original


def test_the_accessors_of_a_property_wait(fake, session):
    cache = load("fake_lm.cache")
    original = vars(cache.Cache)["state"]
    made = session(one=["Cache.state"])
    made.apply(["one"])
    assert imported() == []
    live = vars(cache.Cache)["state"]
    assert cache.Cache().state == ("one", [0])
    assert imported() == ["patch_one"]
    assert vars(cache.Cache)["state"] is live
    assert {str(o.status) for o in made.status()} == {"applied"}
    made.restore()
    assert vars(cache.Cache)["state"] is original


SETTER = (
    DECLARED
    + """
def writable(original):
    return property(lambda cache: ("one", original.fget(cache)), lambda cache, value: None)
PATCH = PATCH._replace(targets=(PATCH.targets[0]._replace(factory=writable),))
"""
)


def test_a_layer_may_add_an_accessor(fake, session):
    cache = load("fake_lm.cache")
    made = session({"one": SETTER.format(id="one", names=["Cache.state"])}, one=["Cache.state"])
    made.apply(["one"])
    held = cache.Cache()
    assert held.state == ("one", [0])
    held.state = 1
    assert {str(o.status) for o in made.status()} == {"applied"}


ADDED = """
from mlx_patches.core.patch import Attribute, Patch, Target

def method(cache, more):
    return ("added", more)

def put(cache, value):
    vars(cache).update(extra=value, note=0)

MADE = {made}
PATCH = Patch("one", "one goes wrong", (Target("fake-lm", "fake_lm.cache", "Cache.extra",
    lambda original: MADE, fingerprint_of=("Cache.update",), defines_new_attribute=True),),
    "probes:none", __name__)
"""
READ = 'Attribute("extra", lambda cache: vars(cache)["extra"] + 1, lambda value: value * 10)'


@pytest.fixture
def adding(fake):
    """A function that makes a session of a patch that adds ``Cache.extra``."""

    def make(source):
        fake.write("patch_one.py", source)
        row = ["fake-lm", "fake_lm.cache", "Cache.extra", ["Cache.update"], True, False, False]
        table = {"one": {"summary": "", "probe": "probes:none", "optional": False}}
        table["one"]["targets"] = [row]
        file = fake.root / "declarations.json"
        file.write_text(json.dumps(table))
        registry = Registry({"one": Entry("patch_one")}, file)
        made = Session(registry, matrix_for(*registry.each_declared()))
        cache = load("fake_lm.cache").Cache
        made.apply(["one"])
        assert imported() == []
        assert {str(o.status) for o in made.status()} == {"applied"}
        return made, cache

    return make


@pytest.mark.parametrize("first", ["read", "write", "delete", "class"])
def test_an_added_attribute_is_made_in_its_first_use(adding, first):
    made, kind = adding(ADDED.format(made=READ))
    cache = kind()
    vars(cache)["extra"] = 4
    if first == "read":
        assert cache.extra == 5
    elif first == "write":
        cache.extra = 3
        assert vars(cache)["extra"] == 30
    elif first == "delete":
        del cache.extra
        assert "extra" not in vars(cache)
    else:
        assert kind.extra is vars(kind)["extra"]
    assert imported() == ["patch_one"]
    assert type(vars(kind)["extra"]).__name__ == "Attribute"
    assert {str(o.status) for o in made.status()} == {"applied"}
    made.restore()
    assert "extra" not in vars(kind)


def test_an_attribute_whose_writes_are_seen(adding):
    _, kind = adding(ADDED.format(made='Attribute("extra", put=put)'))
    cache = kind()
    assert not hasattr(cache, "extra")
    vars(cache).update(extra=1, note=2)
    assert cache.extra == 1
    cache.extra = 3
    assert (cache.extra, vars(cache)["note"]) == (3, 0)
    del cache.extra
    with pytest.raises(AttributeError, match="'Cache' object has no attribute 'extra'"):
        del cache.extra


def test_an_added_method_is_made_in_its_first_call(adding):
    made, kind = adding(ADDED.format(made="method"))
    assert kind().extra(7) == ("added", 7)
    assert kind.extra(None, 8) == ("added", 8)
    assert {str(o.status) for o in made.status()} == {"applied"}
    made.restore()
    assert "extra" not in vars(kind)


@pytest.mark.parametrize("broken", ["raise ValueError('broken')\n", ADDED.format(made="1 / 0")])
def test_an_added_attribute_that_cannot_be_made(adding, caplog, broken):
    made, kind = adding(broken)
    held = kind()
    vars(held)["extra"] = 4
    with caplog.at_level(logging.WARNING):
        assert held.extra == 4
        with pytest.raises(AttributeError, match="extra"):
            kind().extra  # noqa: B018
        held.extra = 5
    assert vars(held)["extra"] == 5
    assert len(caplog.records) == 1
    assert {str(o.status) for o in made.status()} == {"failed"}
    assert "extra" not in vars(kind)


def test_what_replaced_an_added_attribute_before_its_first_use_stays(adding):
    made, kind = adding(ADDED.format(made=READ))
    ours = vars(kind)["extra"]
    kind.extra = theirs = property(lambda cache: ("theirs", ours.__get__(cache, kind)))
    cache = kind()
    vars(cache)["extra"] = 4
    assert cache.extra == ("theirs", 5)
    assert vars(kind)["extra"] is theirs
    assert {str(o.status) for o in made.status()} == {"lost"}


def test_what_replaced_the_attribute_before_its_first_call_stays(fake, session):
    cache = load("fake_lm.cache")
    made = session(one=["attend", "Cache.update"])
    made.apply(["one"])
    ours = cache.attend, cache.Cache.update
    cache.attend = theirs = lambda x: ("theirs", ours[0](x))
    cache.Cache.update = method = lambda self, n: ("theirs", ours[1](self, n))
    assert cache.attend(1) == ("theirs", ("one", 2))
    assert cache.Cache().update(3) == ("theirs", ("one", 3))
    assert (cache.attend, cache.Cache.update) == (theirs, method)
    assert {str(o.status) for o in made.status()} == {"lost"}


BROKEN = {
    "module": "raise ValueError('broken')\n",
    "exit": "raise SystemExit(3)\n",
    "factory": DECLARED + "PATCH = PATCH._replace(targets=tuple("
    "t._replace(factory=lambda original: 1 / 0) for t in PATCH.targets))\n",
    "class": DECLARED + "PATCH = PATCH._replace(targets=tuple("
    "t._replace(factory=lambda original: dict) for t in PATCH.targets))\n",
    "same": DECLARED + "PATCH = PATCH._replace(targets=tuple("
    "t._replace(factory=lambda original: original) for t in PATCH.targets))\n",
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_patch_that_cannot_be_made_is_taken_out_whole(fake, session, caplog, kind):
    cache = load("fake_lm.cache")
    update = vars(cache.Cache)["update"]
    names = ["attend", "Cache.update"]
    made = session({"bad": BROKEN[kind].format(id="bad", names=names)}, bad=names, good=["attend"])
    made.apply(["bad", "good"])
    with caplog.at_level(logging.WARNING):
        assert cache.attend(1) == ("good", 2)
    assert vars(cache.Cache)["update"] is update
    assert [record.getMessage().count("bad goes wrong") for record in caplog.records] == [1]
    assert {(o.patch, str(o.status)) for o in made.status()} == {
        ("bad", "failed"),
        ("good", "applied"),
    }
    assert cache.attend(1) == ("good", 2)
    assert len(caplog.records) == 1


def test_a_patch_that_cannot_be_taken_out_does_not_hold_up_the_call(fake, session, monkeypatch):
    def refuse(site, patch):
        raise RuntimeError("cannot be taken out")

    cache = load("fake_lm.cache")
    made = session({"bad": BROKEN["module"]}, bad=["attend"], good=["attend"])
    made.apply(["bad", "good"])
    monkeypatch.setattr(made.manager, "_remove", refuse)
    assert cache.attend(1) == ("good", 2)
    monkeypatch.undo()


@pytest.mark.parametrize("kind", BROKEN)
@pytest.mark.parametrize("environment", [True, False])
def test_where_it_is_strict_apply_raises(fake, session, monkeypatch, kind, environment):
    if environment:
        monkeypatch.setenv("MLX_PATCHES_STRICT", "1")
    cache = load("fake_lm.cache")
    original = cache.attend
    made = session({"bad": BROKEN[kind].format(id="bad", names=["attend"])}, bad=["attend"])
    with pytest.raises(MlxPatchesError, match="bad is not in effect"):
        made.apply(["bad"], strict=not environment)
    assert cache.attend is original


def test_where_it_is_strict_a_layer_that_waits_is_made(fake, session):
    load("fake_lm.cache")
    made = session(one=["attend"])
    made.apply(["one"])
    assert imported() == []
    assert {str(o.status) for o in made.apply(["one"], strict=True)} == {"applied"}
    assert imported() == ["patch_one"]


def test_the_first_calls_of_many_threads_are_all_patched(fake, session):
    cache = load("fake_lm.cache")
    slow = "import time\ntime.sleep(0.05)\n" + DECLARED.format(id="one", names=["attend"])
    made = session({"one": slow}, one=["attend"], two=["attend"])
    made.apply(["one", "two"])
    start, seen = threading.Barrier(8), []

    def call():
        start.wait()
        seen.append(cache.attend(1))

    threads = [threading.Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [("two", ("one", 2))] * 8


def test_a_patch_taken_out_during_the_first_call_stays_out(fake, session):
    cache = load("fake_lm.cache")
    source = "import sys\nsys.modules['fake_lm.cache'].hook()\n"
    made = session({"one": source + DECLARED.format(id="one", names=["attend"])}, one=["attend"])
    made.apply(["one"])
    cache.hook = lambda: made.restore(["one"])
    assert cache.attend(1) == 2
    assert "attend" in vars(cache)
    assert {str(o.status) for o in made.status()} == {"disabled"}
