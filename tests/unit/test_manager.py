"""Fake patches in the conformance suite, and every status."""

import functools
import importlib
import sys
from collections import OrderedDict
from pathlib import Path
from unittest import mock

import pytest
import wrapt

from mlx_patches import MlxPatchesError
from mlx_patches.core import fingerprint, resolve
from mlx_patches.core import manager as managers
from mlx_patches.core.manager import Manager
from mlx_patches.core.outcome import Outcome, Status
from mlx_patches.core.patch import MISSING, Attribute, around
from mlx_patches.matrix.gate import Gate
from tests.conformance import Case, Conformance

from .conftest import (
    apply_all,
    apply_patches,
    load,
    manager_for,
    mark_result,
    matrix_for,
    patch_of,
    registry_of,
    session_for,
    statuses,
    target,
)

# A patch for each kind of target, as a module that other processes can import.
FAKE_PATCHES = """
from mlx_patches.core.patch import Attribute, Patch, Target, around
from mlx_patches.core.patch import read_stored


def marked(original, *args, **kwargs):
    return ("patched", original(*args, **kwargs))


def target(name, module="fake_lm.cache", factory=around(marked), **more):
    return Target("fake-lm", module, name, factory, **more)


def shifted(cache):
    return read_stored(cache, "offset")


PATCH = Patch(
    "{name}", "goes wrong", ({targets}), probe="none:none", module=__name__
)
"""
KINDS = {
    "method": 'target("Cache.update"),',
    "property": 'target("Cache.state"),',
    "class_method": 'target("Cache.make"),',
    "static_method": 'target("Cache.twice"),',
    "function": 'target("attend"),',
    "added": 'target("Cache.offset", factory=lambda o: Attribute("offset", shifted), '
    'fingerprint_of=("Cache.update",), defines_new_attribute=True),',
    "several": 'target("Cache.update"), target("attend"), target("Cache.state"), '
    'target("Other.update"),',
    "two_modules": 'target("Cache.update"), target("Model.__call__", "fake_lm.model"),',
    "one_is_missing": 'target("Cache.update"), target("Cache.gone"), '
    'Target("no-lm", "no_lm.cache", "f", around(marked)),',
}


class TestConformance(Conformance):
    @pytest.fixture(params=KINDS)
    def case(self, fake, request):
        name = request.param
        source = FAKE_PATCHES.replace("{name}", name.replace("_", "-"))
        fake.write(f"fake_patches_{name}.py", source.replace("{targets}", KINDS[name]))
        return Case(load(f"fake_patches_{name}").PATCH, str(fake.root))


def one(outcomes):
    (outcome,) = outcomes
    return outcome


def apply(patch, **rule):
    return one(manager_for(patch, rule=rule or None).apply(patch))


def test_pending_until_import(fake):
    manager = manager_for(patch := patch_of("Cache.update"))
    outcome = one(manager.apply(patch))
    assert (outcome.status, outcome.reason) == (Status.PENDING, "fake_lm.cache is not imported yet")
    assert "fake_lm" not in sys.modules
    load("fake_lm.cache")
    assert statuses(manager.apply(patch)) == ["applied"]


def test_pending_during_import(fake, monkeypatch):
    found = []
    fake.write(
        "fake_lm/half.py", "def f(): return 1\nimport manager_state\nmanager_state.apply()\n"
    )
    patch = patch_of(target("f", "fake_lm.half"))
    manager = manager_for(patch)
    state = type(sys)("manager_state")
    state.apply = lambda: found.extend(manager.apply(patch))
    monkeypatch.setitem(sys.modules, "manager_state", state)
    half = load("fake_lm.half")
    assert one(found).status is Status.PENDING
    assert one(found).reason == "fake_lm.half is being imported"
    assert half.f() == 1
    assert statuses(manager.apply(patch)) == ["applied"]


RED = {"affected": ">=1", "bodies": {"Cache.update": {"affected": ["0" * 16]}}}


@pytest.mark.parametrize(
    ("rule", "status", "reason"),
    [
        ({"affected": ">=2"}, Status.NOT_AFFECTED, "1.0 is outside >=2"),
        (None, Status.NOT_AFFECTED, ""),
        ({"affected": "<1", "fixed": ">=1"}, Status.FIXED_UPSTREAM, "fixed upstream (>=1)"),
        (RED, Status.DRIFTED, "matches no measured release"),
    ],
)
def test_rule_keeps_target_as_released(cache, rule, status, reason):
    patch = patch_of("Cache.update")
    rules = {"fix": {"fake-lm": rule}} if rule else {}
    matrix = matrix_for(releases={"fake-lm": ["1.0"]}, patches=rules)
    outcome = one(Manager(Gate(matrix)).apply(patch))
    assert outcome.status is status
    assert reason in outcome.reason
    assert outcome.finding is (status is Status.DRIFTED)
    assert rule is not RED or fingerprint.hash_object(cache.Cache.update) in outcome.reason
    assert cache.Cache().update(2) == 2


def test_drifted_in_unmeasured_release(cache):
    outcome = apply(patch_of("Cache.update"), affected=">=2")
    assert outcome.status is Status.DRIFTED
    assert "fake-lm 1.0 was not measured" in outcome.reason


def test_drifted_sibling_holds_others_back(cache):
    patch = patch_of("Cache.update", "Other.update", "attend")
    outcomes = manager_for(patch, rule=RED).apply(patch)
    assert statuses(outcomes) == ["drifted"] * 3
    begins, _, why = outcomes[1].reason.partition(" is drifted: ")
    assert begins == "held back: fake_lm.cache:Cache.update"
    assert why == outcomes[0].reason
    assert cache.attend(1) == 2
    assert cache.Other().update(1) == -1


@pytest.mark.parametrize(
    ("drifted", "others", "held"),
    [
        ("x.models.cache", ["x.models.mamba", "x.generate"], [True, True]),
        ("x.models.base", ["x.models.cache"], [True]),
        ("x.models.mamba", ["x.models.jamba", "x.models.cache"], [False, False]),
        ("x.models.mimo.config", ["x.models.mimo.language"], [True]),
        ("x.server", ["x.server", "x.generate", "x.models.cache"], [True, False, False]),
    ],
)
def test_drifted_target_holds_back_model_or_all(drifted, others, held):
    one = target("f", drifted)
    outcome = Outcome("p", one.distribution, one.path, Status.DRIFTED, "")
    found = [managers.explain_held_back(target("g", name), [(one, outcome)]) for name in others]
    assert list(map(bool, found)) == held
    assert not managers.explain_held_back(
        target("g", drifted, distribution="other-lm"), [(one, outcome)]
    )


def test_process_and_file_find_the_same(cache):
    patch = patch_of(target("Cache.update", fingerprint_of=("Cache", "Cache.update")))
    (one_target,) = patch.targets
    seen = resolve.in_process(cache, one_target, {})
    assert seen.body == resolve.in_file(one_target).body is not None
    cache.Renamed = cache.Cache
    other = target("Renamed.update")
    assert resolve.in_process(cache, other, {}).missing == "Renamed is another name of Cache"
    assert resolve.in_file(other).missing

    one = target("Cache.update", defines_new_attribute=True)
    for found in (resolve.in_process(cache, one, {}), resolve.in_file(one)):
        assert found.missing == "the release defines fake_lm.cache:Cache.update itself"

    cache.Other = OrderedDict
    one = target("Cache.update", fingerprint_of=("Cache.update", "Other.move_to_end"))
    assert resolve.in_process(cache, one, {}).body == resolve.in_file(one).body is not None


def test_known_definition_in_another_file(cache, monkeypatch):
    one = target("Cache.update")
    body = resolve.in_file(one).body
    line = f'0123 {{"Cache.update":["{body}",[1]]}}'.encode()
    for known, released in (([], False), ([line], True)):
        monkeypatch.setattr(resolve.known_files, "_lines", lambda known=known: known)
        assert resolve.in_file(one).released is resolve.in_process(cache, one, {}).released
        assert resolve.in_file(one).released is released


def test_replacement_in_a_released_file_is_named(cache, monkeypatch):
    """The file is known, but not what replaced its function."""
    one = target("Cache.state", fingerprint_of=("Cache.update",))
    prints = resolve.fingerprint.hash_file(Path(cache.__file__), ["Cache.update"])
    entry = {name: (value, [1]) for name, value in prints.items()}
    monkeypatch.setattr(resolve.known_files, "entry_of", lambda path: entry)
    assert not resolve.in_process(cache, one, {}).note
    monkeypatch.setattr(cache.Cache, "update", lambda self, n: n)
    note = resolve.in_process(cache, one, {}).note
    assert note.startswith("; Cache.update was replaced by tests.unit.test_manager:")


def test_absent_target_holds_no_other_back(cache):
    patch = patch_of("Cache.update", "Cache.gone", "Nobody.update", target("f", "fake_lm.none"))
    outcomes = manager_for(patch).apply(patch)
    assert statuses(outcomes) == ["applied", "absent", "absent", "pending"]


def test_conflict(cache):
    def theirs(self, n):
        return 100

    cache.Cache.update = theirs
    outcome = apply(patch_of("Cache.update"))
    assert outcome.status is Status.CONFLICT
    assert "tests.unit.test_manager:test_conflict.<locals>.theirs" in outcome.reason
    assert cache.Cache.update is theirs


def test_conflict_with_added_attribute(cache):
    theirs = cache.Cache.extra = property(lambda self: 7)
    outcome = apply(patch_of(adding("Cache.extra")))
    assert outcome.status is Status.CONFLICT
    assert "tests.unit.test_manager:" in outcome.reason
    assert vars(cache.Cache)["extra"] is theirs


def adding(name, **more):
    return target(name, fingerprint_of=("Cache.update",), defines_new_attribute=True, **more)


@pytest.mark.parametrize(
    ("one_target", "reason"),
    [
        (target("Cache.gone"), "fake_lm.cache:Cache.gone does not exist in this release"),
        (target("gone"), "fake_lm.cache:gone does not exist in this release"),
        (target("Gone.update"), "fake_lm.cache has no class Gone"),
        (target("attend.update"), "fake_lm.cache has no class attend"),
        (target("Cache.update", "fake_lm.model"), "Cache comes from fake_lm.cache"),
        (target("attend", "fake_lm.model"), "attend comes from fake_lm.cache:attend"),
        (adding("Cache.twice"), "the release defines fake_lm.cache:Cache.twice itself"),
        (target("f", "no_lm.cache", distribution="no-lm"), "the distribution is not installed"),
    ],
)
def test_absent(fake, one_target, reason):
    load("fake_lm.model")
    outcome = apply(patch_of(one_target))
    assert (outcome.status, outcome.reason) == (Status.ABSENT, reason)


def test_restored_is_disabled(cache):
    manager, _ = apply_all("Cache.update")
    assert statuses(manager.restore()) == ["disabled"]
    assert statuses(manager.status()) == ["disabled"]
    assert one(manager.status()).reason == "restored"


def broken(original):
    raise ValueError("on purpose")


def test_failed(fake, cache):
    model, original = load("fake_lm.model"), cache.attend
    manager = manager_for(patch := patch_of("attend", target("Cache.update", factory=broken)))
    outcomes = manager.apply(patch)
    assert statuses(outcomes) == statuses(manager.status()) == ["failed", "failed"]
    assert outcomes[0].reason == "rolled back: ValueError: on purpose"
    assert model.attend is cache.attend is original


def test_failed_target_takes_out_others(fake, cache):
    """All or nothing, even for later imports: a failing target removes the applied one."""
    patch = patch_of("attend", target("Model.__call__", "fake_lm.model", factory=broken))
    manager = manager_for(patch)
    assert statuses(manager.apply(patch)) == ["applied", "pending"]
    load("fake_lm.model")
    assert statuses(manager.apply(patch)) == ["failed", "failed"]
    assert statuses(manager.status()) == ["failed", "failed"]
    assert cache.attend(1) == 2
    assert load("fake_lm.model").attend is cache.attend


@pytest.mark.parametrize(
    ("write", "reason"),
    [("pass", "is the release's own again"), ("raise TypeError('frozen')", "TypeError: frozen")],
)
def test_failed_with_stubborn_metaclass(fake, write, reason):
    source = f"""
        class Meta(type):
            def __setattr__(cls, name, value):
                {write}

        class Stubborn(metaclass=Meta):
            def f(self): return 1

        def g(): return 1
        """
    fake.write("fake_lm/stubborn.py", source)
    module = load("fake_lm.stubborn")
    before = vars(module.Stubborn)["f"], module.g
    patch = patch_of(target("g", "fake_lm.stubborn"), target("Stubborn.f", "fake_lm.stubborn"))
    outcomes = manager_for(patch).apply(patch)
    assert statuses(outcomes) == ["failed", "failed"]
    assert reason in outcomes[0].reason
    assert (vars(module.Stubborn)["f"], module.g) == before


def test_failed_with_same_object(cache):
    outcome = apply(patch_of(target("attend", factory=lambda original: original)))
    assert outcome.status is Status.FAILED
    assert "is the original" in outcome.reason


OWN = "import functools\nfrom fake_lm.cache import attend\n"


@pytest.mark.parametrize(
    ("holder", "place"),
    [
        (OWN + "kept = functools.partial(attend, 1)", "a partial"),
        (OWN + "def f(x, using=attend): return 1", "a default argument of fake_lm.holder:f"),
        (OWN + "def make(g):\n    return lambda x: g(x)\nkept = make(attend)", "a cell"),
        ("from fake_lm.cache import attend as look", "the module other_pk"),
    ],
)
def test_late_if_original_is_held(fake, cache, holder, place):
    name = "other_pk" if "other_pk" in place else "fake_lm.holder"
    fake.write(f"{name.replace('.', '/')}.py", holder)
    load(name)
    manager, _ = apply_all("attend")
    assert one(manager.status()).status is Status.APPLIED  # it does not look through the heap
    outcome = one(manager.status(held_elsewhere=True))
    assert outcome.status is Status.LATE
    assert place in outcome.reason
    assert outcome.finding


def test_garbage_makes_no_target_late(fake, cache):
    """Garbage that holds one original: the second search skips our own references."""
    fake.write("fake_lm/holder.py", OWN + "def make(g):\n    return lambda x: g(x)\n")
    made = [load("fake_lm.holder").make(load("fake_lm.cache").attend)]
    made.append(made)  # a cycle
    manager, _ = apply_all("attend")
    assert one(manager.status(held_elsewhere=True)).status is Status.LATE
    del made
    assert one(manager.status(held_elsewhere=True)).status is Status.APPLIED


def test_not_late_if_imported_after_patch(fake, cache):
    manager, _ = apply_all("attend")
    fake.write("other_pk.py", "from fake_lm.cache import attend as look\n")
    assert load("other_pk").look(1) == ("patched", 2)
    assert statuses(manager.status(held_elsewhere=True)) == ["applied"]


@pytest.mark.parametrize("name", ["Cache.update", "attend", "Cache.state"])
def test_lost_if_replaced(cache, name):
    manager, patch = apply_all(name)
    owner, attribute = (cache, name) if "." not in name else (cache.Cache, name.partition(".")[2])
    stranger = property(lambda self: 9) if name == "Cache.state" else lambda *args: 9
    setattr(owner, attribute, stranger)
    outcome = one(manager.status())
    assert outcome.status is Status.LOST
    assert "was replaced by tests.unit.test_manager:" in outcome.reason
    assert statuses(manager.apply(patch)) == ["conflict"]
    assert vars(owner)[attribute] is stranger
    manager.restore()
    assert vars(owner)[attribute] is stranger


def test_lost_if_half_of_property_is_left(cache):
    def with_setter(original):
        return property(original.fget, lambda cache, value: None)

    original = vars(cache.Cache)["state"]
    manager, _ = apply_all(target("Cache.state", factory=with_setter))
    cache.Cache.state = property(original.fget)
    assert statuses(manager.status()) == ["lost"]


def test_settled_target_is_not_decided_again(fake, monkeypatch):
    load("fake_lm.cache")
    looked = []
    real = managers.in_process

    def count(module, target, originals):
        looked.append(target.name)
        return real(module, target, originals)

    monkeypatch.setattr(managers, "in_process", count)
    gone, call = target("Cache.gone"), target("Model.__call__", "fake_lm.model")
    manager = manager_for(patch := patch_of(gone, call))
    assert statuses(manager.apply(patch)) == ["absent", "pending"]
    load("fake_lm.model")
    assert statuses(manager.apply(patch)) == ["absent", "applied"]
    assert statuses(manager.apply(patch)) == ["absent", "applied"]
    assert looked == ["Cache.gone", "Model.__call__"]
    fake.forget()
    load("fake_lm.cache")
    manager.apply(patch)
    assert looked == ["Cache.gone", "Model.__call__", "Cache.gone"]
    manager.restore()


def test_imported_names_are_rebound(fake, cache):
    model = load("fake_lm.model")
    fake.write("fake_lm/renamed.py", "from .cache import attend as look\n")
    fake.write("other_pk.py", "from fake_lm.cache import attend\n")
    renamed, other = load("fake_lm.renamed"), load("other_pk")
    original = cache.attend
    manager, _ = apply_all("attend")
    for alias in (cache.attend, model.attend, renamed.look, other.attend):
        assert alias is cache.attend is not original
    assert model.Model()(1) == ("patched", 2)
    assert statuses(manager.status()) == ["applied"]
    manager.restore()
    for alias in (cache.attend, model.attend, renamed.look, other.attend):
        assert alias is original


def test_unrelated_names_are_kept(fake, cache):
    fake.write("other_pk.py", "def attend(x): return x\n")
    other = load("other_pk")
    theirs = other.attend
    manager, _ = apply_all("attend")
    manager.restore()
    assert other.attend is theirs


def test_aliases_follow_reapplied_patch(fake, cache):
    model = load("fake_lm.model")
    original = cache.attend
    manager, patch = apply_all("attend")
    cache.attend = original
    manager.apply(patch)
    assert model.attend is cache.attend is not original
    manager.restore()
    assert model.attend is cache.attend is original


def test_patches_share_one_pass(fake, cache):
    model, original = load("fake_lm.model"), cache.attend
    one, other = patch_of("attend", id="one"), patch_of("attend", id="other")
    manager = manager_for(one, other)
    manager.apply(one, rebind=False)
    manager.apply(other, rebind=False)
    assert model.attend is original is not cache.attend
    manager.rebind()
    assert model.attend is cache.attend
    assert model.attend(1) == ("patched", ("patched", 2))
    manager.restore()
    assert model.attend is cache.attend is original


def test_restore_before_pass_leaves_no_alias(fake, cache):
    model, original = load("fake_lm.model"), cache.attend
    manager = manager_for(patch := patch_of("attend"))
    manager.apply(patch, rebind=False)
    manager.restore()
    assert model.attend is cache.attend is original


def test_fork_waits_for_pass(fake, cache):
    model = load("fake_lm.model")
    manager = manager_for(patch := patch_of("attend"))
    manager.apply(patch, rebind=False)
    manager.before_fork()
    manager.after_fork(in_child=False)
    assert model.attend is cache.attend


def test_interrupted_session_finishes_pass(fake, cache):
    model, original = load("fake_lm.model"), cache.attend

    def interrupt(function):
        raise KeyboardInterrupt

    ours = session_for(
        patch_of("attend", id="first"),
        patch_of(target("Cache.update", factory=interrupt), id="last"),
    )
    with pytest.raises(KeyboardInterrupt):
        ours.apply(["first", "last"])
    assert model.attend is cache.attend is not original
    ours.restore()
    assert model.attend is cache.attend is original


def name_call(word):
    return around(lambda original, *args: (word, original(*args)))


@pytest.fixture
def two(cache):
    first = patch_of(target("attend", factory=name_call("first")), id="first")
    second = patch_of(target("attend", factory=name_call("second")), id="second")
    return apply_patches(first, second)


def test_two_patches_are_undone_in_reverse(cache, two):
    outcomes = two.restore()
    assert [outcome.patch for outcome in outcomes] == ["second", "first"]
    assert cache.attend(1) == 2


@pytest.mark.parametrize("word", ["first", "second"])
def test_either_patch_can_be_toggled(cache, two, word):
    other = {"first": "second", "second": "first"}[word]
    live, original = cache.attend, cache.attend.__wrapped__
    assert statuses(two.restore([word])) == ["disabled"]
    assert cache.attend is live
    assert cache.attend(1) == (other, 2)
    assert {o.patch: str(o.status) for o in two.status()} == {word: "disabled", other: "applied"}
    two.apply(patch_of(target("attend", factory=name_call(word)), id=word))
    assert cache.attend is live
    assert cache.attend(1) == ("second", ("first", 2))
    two.restore()
    assert cache.attend is original


def test_removed_layer_below_replacement(cache, two):
    ours = cache.attend
    cache.attend = theirs = lambda x: ("theirs", ours(x))
    two.restore(["first"])
    assert cache.attend is theirs
    assert cache.attend(1) == ("theirs", ("second", 2))


def test_registry_order(cache):
    original = cache.attend
    patches = [patch_of(target("attend", factory=name_call(w)), id=w) for w in ("first", "second")]
    registry = registry_of(*patches)
    manager = Manager(Gate(matrix_for(*patches)), registry)
    for patch in reversed(patches):
        manager.apply(patch)
    assert cache.attend(1) == ("second", ("first", 2))
    manager.restore()
    assert cache.attend is original


@pytest.mark.parametrize("name", ["Cache.update", "Cache.state", "Cache.make", "attend"])
def test_closure_around_ours_stays(cache, name):
    manager, patch = apply_all(name)
    owner, attribute = (cache, name) if "." not in name else (cache.Cache, name.partition(".")[2])
    live = vars(owner)[attribute]
    theirs = closure_around(live)
    setattr(owner, attribute, theirs)
    before = call_function(cache, name)
    assert statuses(manager.restore()) == ["disabled"]
    assert vars(owner)[attribute] is theirs
    assert call_function(cache, name) != before
    assert statuses(manager.apply(patch)) == ["applied"]
    assert vars(owner)[attribute] is theirs
    assert call_function(cache, name) == before
    manager.restore()


def call_function(cache, name):
    made = cache.Cache()
    calls = {
        "Cache.update": lambda: made.update(1),
        "Cache.state": lambda: made.state,
        "Cache.make": lambda: type(cache.Cache.make()),
        "attend": lambda: cache.attend(1),
    }
    return calls[name]()


def closure_around(obj):
    if isinstance(obj, property):
        return property(closure_around(obj.fget), obj.fset)
    if isinstance(obj, classmethod):
        return classmethod(closure_around(obj.__func__))

    @functools.wraps(obj)
    def inner(*args):
        return obj(*args)

    return inner


def test_two_wrappers_around_ours(cache):
    manager, _ = apply_all("attend")
    cache.attend = wrapt.FunctionWrapper(closure_around(cache.attend), lambda f, _, a, k: f(*a))
    assert cache.attend(1) == ("patched", 2)
    assert statuses(manager.restore()) == ["disabled"]
    assert cache.attend(1) == 2


@pytest.mark.parametrize(
    ("wrap", "name"),
    [
        (lambda old: closure_around(old), "closure_around.<locals>.inner"),
        (lambda old: wrapt.FunctionWrapper(old, their_wrapper), "their_wrapper"),
    ],
)
def test_replacement_is_named_by_its_code(cache, wrap, name):
    original = cache.attend
    manager, _ = apply_all("attend")
    cache.attend = wrap(original)
    assert one(manager.status()).reason.endswith(f"was replaced by tests.unit.test_manager:{name}")


def their_wrapper(wrapped, instance, args, kwargs):
    return wrapped(*args, **kwargs)


def test_opaque_wrapper_is_loss(cache):
    """Without ``__wrapped__`` it is unknown whether the patched function is still called."""
    manager, _ = apply_all("attend")
    ours = cache.attend
    cache.attend = lambda x: ours(x)
    assert statuses(manager.status()) == ["lost"]


def test_wrapped_added_attribute_stays(cache):
    manager, _ = apply_all(adding("Cache.extra", factory=lambda o: Attribute("extra")))
    ours = vars(cache.Cache)["extra"]
    theirs = wrapt.FunctionWrapper(ours, lambda inner, instance, args, kwargs: inner())
    cache.Cache.extra = theirs
    assert statuses(manager.status()) == ["applied"]
    assert "tests.unit.test_manager:test_wrapped_added_attribute" in one(manager.restore()).reason
    assert vars(cache.Cache)["extra"] is theirs
    cache.Cache.extra = ours
    manager.restore()
    assert "extra" not in vars(cache.Cache)


@pytest.mark.parametrize(
    ("rule", "raises"),
    [
        ({"affected": ">=0"}, False),
        ({"affected": "<1", "fixed": ">=1"}, False),
        ({"affected": ">=0", "bodies": {"attend": {"affected": ["0" * 16]}}}, True),
    ],
)
def test_strict_raises_only_for_findings(cache, rule, raises):
    manager = manager_for(patch := patch_of("attend"), rule=rule)
    if raises:
        with pytest.raises(MlxPatchesError, match=r"fix is not in effect: fake_lm\.cache:attend: "):
            manager.apply(patch, strict=True)
    else:
        manager.apply(patch, strict=True)


def test_around_keeps_metadata(cache):
    original = cache.attend
    replacement = around(mark_result)(original)
    assert replacement.__wrapped__ is original
    assert (replacement.__name__, replacement.__module__) == ("attend", "fake_lm.cache")


def test_attribute_converts_and_keeps_values(cache):
    made = cache.Cache()
    cache.Cache.offset = Attribute(
        "offset", lambda c: vars(c)["offset"] + 1, lambda value: value * 10
    )
    assert made.offset == 1
    made.offset = 3
    assert made.offset == 31
    assert vars(made) == {"offset": 30}
    del made.offset
    with pytest.raises(AttributeError, match="'Cache' object has no attribute 'offset'"):
        del made.offset
    made.offset = 3
    del cache.Cache.offset
    assert made.offset == 30

    cache.Cache.extra = Attribute("extra")
    made = cache.Cache()
    made.first, made.extra, made.last = 1, 2, 3
    assert list(vars(made).items())[-3:] == [("first", 1), ("extra", 2), ("last", 3)]
    held = vars(made)
    made.extra = 4  # the next write keeps the dict
    assert vars(made) is held
    assert (made.first, made.extra, made.last) == (1, 4, 3)

    cache.Cache.extra = Attribute("extra")
    with pytest.raises(AttributeError, match="'Cache' object has no attribute 'extra'"):
        cache.Cache().extra  # noqa: B018
    assert not hasattr(cache.Cache(), "extra")
    assert repr(MISSING) == "<missing>"


def test_held_names_are_patched_again(fake):
    patch = patch_of("attend")
    manager = manager_for(patch)
    module = load("fake_lm.cache")
    original = module.attend
    manager.apply(patch)
    held = functools.partial(module.attend)
    manager.restore()
    assert (held(1), module.attend) == (2, original)
    manager.apply(patch)
    assert held(1) == ("patched", 2)
    manager.restore()
    assert (held(1), module.attend) == (2, original)


@pytest.mark.parametrize("again", ("reload", "import"))
def test_reloaded_module_is_lost_and_leaves_no_layer(fake, again):
    patch = patch_of("Cache.update", "attend")
    manager = manager_for(patch)
    old = load("fake_lm.cache")
    cache, update, attend = old.Cache, old.Cache.update, old.attend
    manager.apply(patch)
    held = old.attend
    if again == "import":
        del sys.modules["fake_lm.cache"]
        new = load("fake_lm.cache")
    else:
        new = importlib.reload(old)
    assert statuses(manager.status()) == ["lost", "lost"]
    manager.apply(patch)
    assert statuses(manager.status()) == ["applied", "applied"]
    assert new.Cache().update(1) == cache().update(1) == ("patched", 1)
    assert new.attend(1) == held(1) == ("patched", 2)
    assert len(manager.restore()) == 2
    assert vars(cache)["update"] is update
    assert (new.Cache().update(1), new.attend(1), held(1)) == (1, 2, 2)
    assert again == "reload" or old.attend is attend
    assert manager.sites() == []


def test_stand_in_module_is_named(fake, monkeypatch):
    patch = patch_of("attend")
    manager = manager_for(patch)
    assert manager.apply(patch)[0].reason == "fake_lm.cache is not imported yet"
    monkeypatch.setitem(sys.modules, "fake_lm.cache", mock.NonCallableMock())
    (outcome,) = manager.apply(patch)
    assert outcome.reason == "fake_lm.cache in sys.modules is not a module but a NonCallableMock"
