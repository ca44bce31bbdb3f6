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


def test_the_accessors_of_a_property_do_not_wait(fake, session):
    """A layer may add a setter, so what is installed depends on it."""
    cache = load("fake_lm.cache")
    session(one=["Cache.state"]).apply(["one"])
    assert imported() == ["patch_one"]
    assert cache.Cache().state == ("one", [0])


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
