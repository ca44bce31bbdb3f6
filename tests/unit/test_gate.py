import pytest

from mlx_patches.core.distributions import Installed
from mlx_patches.core.outcome import Status
from mlx_patches.core.resolve import Found, in_file
from mlx_patches.matrix import gate
from mlx_patches.matrix.matrix import Rule

from .conftest import matrix_for, patch_of, target

BROKEN, SOUND, NEW = "b" * 16, "5" * 16, "f" * 16
RELEASES = ("0.9", "1.0", "1.5", "2.0", "2.1")
RULE = Rule(affected=">=1.0,<2.0", fixed=">=2.0", releases=RELEASES)
RULE_OF_MATRIX = {"affected": ">=1.0,<2.0", "bodies": {"C.f": {"affected": ["b" * 16]}}}
BODIES = Rule(
    affected=">=1.0,<2.0",
    fixed=">=2.0",
    affected_bodies={"C.f": frozenset({BROKEN})},
    sound_bodies={"C.f": frozenset({SOUND})},
    releases=RELEASES,
)


def judge(version, body=None, rule=RULE, name="C.f"):
    installed = Installed("fake-lm", version) if version else None
    return gate.decide_by_rule(rule, installed, name, body)


@pytest.mark.parametrize("body", [None, NEW])
@pytest.mark.parametrize(
    ("version", "ok", "status"),
    [
        ("0.9", False, Status.NOT_AFFECTED),
        ("1.4+build", True, None),
        ("2.5", False, Status.NOT_AFFECTED),
        ("3.1", False, Status.FIXED_UPSTREAM),
        ("unknown", False, Status.DRIFTED),
    ],
)
def test_declared_range(version, body, ok, status):
    rule = Rule(affected=">=1,<2", fixed=">=3", declared=True, note="declared by them")
    verdict = judge(version, body, rule)
    assert verdict.ok is ok
    assert ok or verdict.status is status
    assert verdict.reason.endswith("; declared by them")


@pytest.mark.parametrize(("needed", "ok"), [("1.5", True), ("2.0", False), (None, False)])
def test_supporting_target_follows_others(needed, ok):
    carrier = target("Cache.update", distribution="base-lm", supports=True)
    patch = patch_of(target("Model.__call__", "fake_lm.model"), carrier)
    matrix = matrix_for(patch, rule={"affected": ">=1.0,<2.0"})
    found = {"base-lm": Installed("base-lm", "7.7+git")}
    if needed:
        found["fake-lm"] = Installed("fake-lm", needed)
    judging = gate.Gate(matrix, found.get)
    verdict = judging.decide(patch, carrier, Found(NEW))
    assert verdict.ok is ok
    assert not ok or verdict.reason.endswith("the patch's targets in fake-lm need it")
    assert judging.decide(patch, patch.targets[0], Found(NEW)).ok is ok


@pytest.mark.parametrize("version", ["4.56.2", "5.0.0rc1", "99.0"])
@pytest.mark.parametrize("others", [{}, {"fake-lm": Installed("fake-lm", "2.0")}])
def test_library_is_patched_in_every_release(version, others, tmp_path, monkeypatch):
    (tmp_path / "library.py").write_text("class C:\n    def f(self): return 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    own = target("C.f", "library", distribution="transformers")
    carrier = target("load", distribution="fake-lm", supports=True)
    patch = patch_of(own, target("g", distribution="fake-lm"), carrier)
    matrix = matrix_for(patch, rule={"affected": "<2.0"})
    judging = gate.Gate(matrix, {**others, "transformers": Installed("transformers", version)}.get)
    verdict = judging.decide(patch, own, Found(NEW))
    assert verdict.ok, verdict
    assert "every release" in verdict.reason
    assert judging.decide(patch, carrier, Found(NEW)).ok is bool(others)
    gone = judging.decide(patch, own, Found(missing="C.f does not exist in this release"))
    assert (gone.ok, gone.status) == (False, Status.FAILED)  # a finding, not a defect that is gone


MEASURED = {
    "mlx-lm": [{"releases": {"mlx-lm": "1.0"}, "unbuilt": ["other"]}],
    "mlx-vlm": [{"releases": {"mlx-lm": "1.1", "mlx-vlm": "2.0"}}],
}
ENTRIES = {
    "default": {"mlx-lm": ["generic"], "mlx-vlm": ["generic"]},
    "model": {"mlx-lm": ["own"], "mlx-vlm": ["own"]},
    "other": {"mlx-lm": ["own"], "mlx-vlm": ["own"]},
}


@pytest.mark.parametrize(
    ("distribution", "installed", "exact"),
    [
        ("mlx-lm", {"mlx-lm": "1.0"}, True),
        ("mlx-lm", {"mlx-lm": "1.0", "mlx-vlm": "3.0"}, True),
        ("mlx-lm", {"mlx-lm": "1.2"}, False),
        ("mlx-lm", {"mlx-lm": "1.0+local"}, False),
        ("mlx-lm", {"mlx-lm": "1.1", "mlx-vlm": "2.0"}, False),  # only mlx-vlm's were measured
        ("mlx-vlm", {"mlx-lm": "1.1", "mlx-vlm": "2.0"}, True),
        ("mlx-vlm", {"mlx-lm": "1.0", "mlx-vlm": "2.0"}, False),
        ("mlx-vlm", {"mlx-vlm": "2.0"}, False),
    ],
)
def test_entry_is_exact_in_measured_sets(distribution, installed, exact):
    matrix = matrix_for(models=ENTRIES, measured=MEASURED)
    found = {name: Installed(name, version) for name, version in installed.items()}
    judging = gate.Gate(matrix, found.get)
    expected = ("own",) if exact else ("generic", "own")
    assert judging.patches_for("model", distribution) == expected
    assert judging.patches_for("unknown", distribution) == ("generic",)
    built = exact and distribution == "mlx-vlm"  # mlx-lm 1.0 could not build the other model
    assert judging.patches_for("other", distribution) == (("own",) if built else ("generic", "own"))


def test_other_entries():
    matrix = matrix_for(models=ENTRIES, measured=MEASURED)
    judging = gate.Gate(matrix, lambda name: Installed(name, "1.0", commit="0123456"))
    assert judging.patches_for("model", "mlx-lm") == ("generic", "own")
    judging = gate.Gate(matrix_for(models=ENTRIES), lambda name: Installed(name, "9"))
    assert judging.patches_for("model", "mlx-lm") == ("own",)


def test_no_rule_is_not_affected():
    verdict = judge("1.5", rule=None)
    assert (verdict.ok, verdict.status) == (False, Status.NOT_AFFECTED)
    assert "no rule for fake-lm" in verdict.reason


@pytest.mark.parametrize(
    ("version", "ok", "status", "reason"),
    [
        ("0.9", False, Status.NOT_AFFECTED, "0.9 is outside >=1.0,<2.0"),
        ("1.0", True, None, "1.0 is in >=1.0,<2.0"),
        ("1.5", True, None, "1.5 is in >=1.0,<2.0"),
        ("1.7", True, None, "1.7 is in >=1.0,<2.0"),
        ("2.0", False, Status.FIXED_UPSTREAM, "fixed upstream (>=2.0)"),
        ("3.0", False, Status.FIXED_UPSTREAM, "fixed upstream (>=2.0)"),
    ],
)
def test_version_decides_without_body(version, ok, status, reason):
    verdict = judge(version, NEW)
    assert verdict.ok is ok
    assert verdict.reason == reason
    if not ok:
        assert verdict.status is status


@pytest.mark.parametrize("version", ["0.9", "1.5", "1.7", "2.0", "3.0", "0.95.dev1+g12", "unknown"])
def test_broken_body_outranks_version(version):
    verdict = judge(version, BROKEN, BODIES)
    assert verdict.ok
    assert ("by its fingerprint" in verdict.reason) == (version not in ("1.5", "1.7"))


OK, CLEAR, FIXED, DRIFTED = None, Status.NOT_AFFECTED, Status.FIXED_UPSTREAM, Status.DRIFTED
SOUND_ALONE = Rule(affected=">=1.0", sound_bodies={"C.f": frozenset({SOUND})}, releases=RELEASES)
# As after the last release that was measured.
TO_THE_LAST = Rule(affected=">=1.0,<=2.1", releases=RELEASES)
NOT_THE_LAST = Rule(affected="<1.5", releases=RELEASES)
NO_VERSION = ("", "unknown", "1.x", "2.0-zz")


@pytest.mark.parametrize(
    ("rule", "body", "versions", "status", "reason"),
    [
        # Known code outranks the version.
        (BODIES, SOUND, ("0.9", "1.5", "1.7", "0.95", "unknown"), CLEAR, "measured and is sound"),
        (BODIES, SOUND, ("2.0",), FIXED, ""),
        # Unknown code is drifted, whatever the version.
        (BODIES, NEW, ("1.5",), DRIFTED, f"1.5 ({NEW}) matches no measured release"),
        (BODIES, NEW, ("0.8", "0.9", "2.0", "2.1", "9.9"), DRIFTED, "no measured release"),
        (BODIES, NEW, ("0.95", *NO_VERSION), DRIFTED, "no measured release"),
        (SOUND_ALONE, NEW, ("1.5",), DRIFTED, ""),
        # Without source the version is left.
        (BODIES, None, ("1.5",), OK, "no source"),
        (BODIES, None, ("2.0",), FIXED, ""),
        (BODIES, None, ("0.9",), CLEAR, ""),
        (BODIES, None, ("0.95", *NO_VERSION), DRIFTED, "not measured"),
        # Beyond the measured releases.
        (RULE, NEW, ("0.8",), CLEAR, ""),
        (TO_THE_LAST, None, ("2.1",), OK, ""),
        (TO_THE_LAST, NEW, ("2.2",), DRIFTED, ""),
        (NOT_THE_LAST, NEW, ("2.1", "2.0.5"), CLEAR, ""),
        (NOT_THE_LAST, NEW, ("2.2",), DRIFTED, ""),
    ],
)
def test_code_and_version_decide(rule, body, versions, status, reason):
    for version in versions:
        verdict = gate.decide_by_rule(rule, Installed("fake-lm", version), "C.f", body)
        assert verdict.ok is (status is OK), version
        assert verdict.ok or verdict.status is status, version
        assert reason in verdict.reason


def test_version_decides_without_probe_result():
    def status(version):
        installed = Installed("fake-lm", version)
        return gate.decide_by_rule(BODIES, installed, "C.f", NEW, released=True).status

    assert status("2.0") is Status.FIXED_UPSTREAM
    assert status("0.9") is Status.NOT_AFFECTED
    assert status("1.5") is status("unknown") is Status.DRIFTED


def test_bodies_are_per_target():
    assert judge("1.5", BROKEN, BODIES, name="C.other").ok
    assert not judge("2.0", BROKEN, BODIES, name="C.other").ok


def test_unreadable_code():
    """A release installed only as bytecode."""
    fix = patch_of(target("C.f"))
    for sound, ok in ([], True), ([SOUND], False):
        bodies = {"C.f": {"affected": [BROKEN], "sound": sound}}
        rule = {"affected": ">=1.0", "bodies": bodies}
        judging = gate.Gate(matrix_for(fix, rule=rule), lambda name: Installed(name, "1.5"))
        verdict = judging.decide(fix, fix.targets[0], Found(None))
        assert (verdict.ok, "no source" in verdict.reason) == (ok, True)
        assert judging.decide(fix, fix.targets[0], None).ok  # not imported yet
    assert verdict.status is Status.DRIFTED


@pytest.mark.parametrize("version", ["1.5", "2.0", "9.9", "0.9"])
def test_absent_target(version):
    patch = patch_of(target("C.f"))
    matrix = matrix_for(patch, rule=RULE_OF_MATRIX)
    judging = gate.Gate(matrix, lambda name: Installed(name, version))
    verdict = judging.decide(patch, patch.targets[0], Found(missing="it has no class C"))
    assert verdict == (False, "it has no class C", Status.ABSENT)


@pytest.mark.parametrize("version", ["2.0", "0.8", "1.5", "9.9"])
def test_version_does_not_decide_unseen_code(version):
    """A build of a repository may have the defect under a number that repaired it."""
    patch = patch_of(target("C.f"))
    rule = {**RULE_OF_MATRIX, "fixed": ">=2.0"}
    judging = gate.Gate(matrix_for(patch, rule=rule), lambda name: Installed(name, version))
    verdict = judging.decide(patch, patch.targets[0], None)
    assert verdict.ok and (version == "1.5" or verdict.reason == "its code decides")


def test_supporting_target_in_unmeasured_release(tmp_path, monkeypatch):
    (tmp_path / "renumbered.py").write_text("class Model:\n    def run(self): return 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    helper = target("Cache.f", "renumbered", supports=True)
    patch = patch_of(target("Model.run", "renumbered"), helper)
    body = in_file(patch.targets[0]).body
    for known, ok in ((body, True), (NEW, False)):
        rule = {"affected": "<=1.0", "bodies": {"Model.run": {"affected": [known]}}}
        judging = gate.Gate(matrix_for(patch, rule=rule), lambda name: Installed(name, "9.9"))
        assert judging.decide(patch, helper, Found(NEW)).ok is ok


@pytest.mark.parametrize(("name", "ok"), [("Handler.submit", True), ("Handler.renamed", False)])
def test_supporting_target_of_an_unmeasured_host(tmp_path, monkeypatch, name, ok):
    """Half a patch crashed mlx-openai-server 1.6.3, which has none of the defective code."""
    (tmp_path / "handlers.py").write_text("class Handler:\n    def submit(self): return 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    host = {"distribution": "mlx-openai-server"}
    helper = target("Handler.answer", "handlers", supports=True, **host)
    patch = patch_of(target(name, "handlers", **host), helper)
    judging = gate.Gate(matrix_for(patch, rule={"affected": ">=0"}), lambda n: Installed(n, "1.6"))
    assert judging.decide(patch, helper, Found(NEW)).ok is ok


def test_reason_names_commit():
    installed = Installed("fake-lm", "1.5", commit="0123456789abcdef")
    verdict = gate.decide_by_rule(BODIES, installed, "C.f", BROKEN)
    assert "fake-lm 1.5 at commit 0123456789ab" in verdict.reason


LM = Rule(
    affected=">=0.28.4,<=0.31.3",
    fixed=">=0.32.0",
    releases=("0.28.4", "0.31.1", "0.31.3", "0.32.0", "0.32.2"),
)


@pytest.mark.parametrize(
    ("decision", "versions"),
    [
        ("affected", "0.31.3rc1 0.31.3.dev4 0.31.3+local 0.31.3rc1+g123 0.31.2 v0.31.3 0.31.3.0"),
        ("unmeasured", "0.31.3.post1 0.31.4.dev1 0.32.0.dev1+g123 0.32.0rc1 0.28.4rc1 0.28.3"),
        ("fixed", "0.32.0+g123 0.32.1.dev1 0.33.0.dev1+g123"),
    ],
)
def test_development_and_local_versions(decision, versions):
    assert {version: LM.decide(version) for version in versions.split()} == dict.fromkeys(
        versions.split(), decision
    )
    assert LM.decide("unknown") == LM.decide("") == "unmeasured"


def test_version_between_clear_releases():
    rule = Rule(affected=">=2.0", releases=("0.9", "1.0", "2.0"))
    assert rule.decide("0.95") == "clear"
    assert rule.decide("1.5") == "unmeasured"


@pytest.mark.parametrize("body", [None, BROKEN, NEW])
@pytest.mark.parametrize(
    ("mlx", "ok"),
    [
        ("0.31.1", False),
        ("0.31.2", True),
        ("0.32.0", True),
        ("0.32.0.dev20260601+1a2b3c4", True),
        ("0.32.1", False),
        ("0.32.4", False),
        (None, True),
    ],
)
def test_patch_for_mlx_releases(mlx, ok, body):
    patch = patch_of(target("C.f"), mlx=("0.31.2", "0.32.0"))
    installed = {"mlx": mlx, "fake-lm": "1.0"}

    def find(name):
        return Installed(name, installed[name]) if installed[name] else None

    judging = gate.Gate(matrix_for(patch), find)
    verdict = judging.decide(patch, patch.targets[0], body and Found(body))
    assert verdict.ok is ok
    if not ok:
        assert verdict.status is Status.NOT_AFFECTED
        assert verdict.reason == f"mlx {mlx} does not have the defect; 0.31.2 and 0.32.0 have"
