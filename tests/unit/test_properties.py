from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from mlx_patches.core.distributions import Installed
from mlx_patches.core.outcome import Status
from mlx_patches.matrix.declared import build_rules
from mlx_patches.matrix.gate import decide_by_rule
from mlx_patches.matrix.matrix import Rule
from mlx_patches.matrix.ranges import BrokenSet

BODIES = st.sampled_from(["0" * 16, "1" * 16, "2" * 16])
parts = st.integers(0, 12)
numbers = st.lists(parts, min_size=1, max_size=3).map(lambda p: ".".join(map(str, p)))
versions = st.builds(
    "{}{}{}".format,
    numbers,
    st.sampled_from(["", "", "", "rc1", ".dev2", "a0.dev1", ".post1"]),
    st.sampled_from(["", "", "", "+g1a2b", "+local.1"]),
)
releases = st.lists(numbers, min_size=1, max_size=6).map(
    lambda found: tuple(map(str, sorted({Version(one) for one in found})))
)
ranges = st.one_of(
    st.builds(">={},<={}".format, numbers, numbers),
    st.builds("<{}".format, numbers),
    st.builds(">={}".format, numbers),
    st.builds("=={}.*".format, numbers),
    st.builds(">={},!={}".format, numbers, numbers),
)
bodies = st.fixed_dictionaries({"f": st.frozensets(BODIES, max_size=2)})


@st.composite
def rules(draw):
    """A rule that the loader accepts: no body is red and sound, no release affected and fixed."""
    affected, sound = draw(bodies), draw(bodies)
    affected["f"] -= sound["f"]
    return Rule(draw(ranges), draw(st.one_of(st.just(""), ranges)), affected, sound, draw(releases))


garbage = st.one_of(st.text(max_size=20), st.sampled_from(["", "unknown", "1" * 5000, "1.0.x"]))


@given(rules(), st.one_of(versions, garbage))
def test_every_version_has_one_of_four_answers(rule, version):
    assert rule.decide(version) in {"affected", "fixed", "clear", "unmeasured"}


@given(rules(), versions)
def test_affected_follows_range_of_public_version(rule, version):
    public, decision = Version(version).public, rule.decide(version)
    inside = SpecifierSet(rule.affected).contains(public, prereleases=True)
    assert (decision == "affected") == inside
    assert rule.decide(public) == rule.decide(f" v{version.upper()} ") == decision


@given(rules())
def test_measured_release_is_never_unmeasured(rule):
    assert "unmeasured" not in map(rule.decide, rule.releases)


@given(rules(), st.one_of(versions, garbage))
def test_unmeasured_newer_release_needs_range(rule, version):
    """A release that was not measured is never treated as sound."""
    newest = Version(rule.releases[-1])
    try:
        beyond = Version(Version(version).public) > newest
    except ValueError:
        beyond = True
    if beyond:
        assert rule.decide(version) != "clear"


@given(st.dictionaries(st.sampled_from(["a", "b"]), ranges, min_size=1), st.data())
def test_broken_set_needs_all_packages(when, data):
    broken = BrokenSet(when, "they cannot", "install others")
    found = data.draw(st.dictionaries(st.sampled_from("abc"), st.one_of(versions, garbage)))
    assert broken.matches(found) in (True, False)
    if broken.matches(found):
        assert set(when) <= set(found)
        some = {name: version for name, version in found.items() if name != min(when)}
        assert not broken.matches(some)


verdicts = (
    st.one_of(st.none(), rules()),
    st.one_of(st.none(), st.builds(Installed, st.just("fake-lm"), st.one_of(versions, garbage))),
    st.one_of(st.none(), BODIES, st.just("f" * 16)),
)


@given(*verdicts)
def test_verdict(rule, installed, body):
    verdict = decide_by_rule(rule, installed, "f", body)
    assert verdict.reason
    allowed = {Status.ABSENT, Status.NOT_AFFECTED, Status.FIXED_UPSTREAM, Status.DRIFTED}
    assert verdict.status in ({Status.PENDING} if verdict.ok else allowed)
    assert decide_by_rule(rule, installed, "f", body) == verdict
    if rule is None or installed is None:
        assert not verdict.ok
        return
    affected, sound = rule.affected_bodies["f"], rule.sound_bodies["f"]
    assert verdict.ok or body not in affected
    assert not (verdict.ok and body in sound)
    # A patch is applied only to known red code, or if the rule has no fingerprints.
    if body is not None and affected | sound and body not in affected | sound:
        assert not verdict.ok


@given(rules(), st.one_of(versions, garbage), st.one_of(st.none(), BODIES))
def test_applied_needs_range_or_body(rule, version, body):
    if decide_by_rule(rule, Installed("fake-lm", version), "f", body).ok:
        assert rule.decide(version) == "affected" or body in rule.affected_bodies["f"]


@given(ranges, ranges, st.one_of(versions, numbers))
def test_declared_ranges_are_disjoint(one, other, version):
    try:
        (rule,) = build_rules("fix", {"fake-lm": one}, {"fake-lm": other}).values()
    except ValueError as error:
        assert "both affected and fixed" in str(error)
        return
    public = Version(version).public
    assert not all(SpecifierSet(r).contains(public, prereleases=True) for r in (one, other))
    assert (rule.affected, rule.fixed) == (one, other)
