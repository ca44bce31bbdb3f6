import pytest

import mlx_patches
from mlx_patches import MlxPatchesError
from mlx_patches.activation import session, started
from mlx_patches.auditing import hosts
from mlx_patches.core.distributions import Installed
from mlx_patches.core.outcome import Outcome, Status
from mlx_patches.matrix.ranges import BrokenSet

from .conftest import patch_of, session_for

HOST = Installed("their-server", "1.2")
LM = Installed("fake-lm", "1.0")


def outcome(status, patch="fix"):
    return Outcome(patch, "fake-lm", "fake_lm.x:y", Status(status), "because")


def report(*outcomes, broken=()):
    return hosts.report(HOST, HOST.name, [HOST, LM], broken, outcomes)


@pytest.fixture
def server(fake):
    def install(*requirements):
        lines = "".join(f"Requires-Dist: {one}\n" for one in requirements)
        head = "Metadata-Version: 2.1\nName: their-server\nVersion: 1.2\n"
        fake.install("their-server", "1.2", metadata=head + lines)

    return install


@pytest.mark.parametrize(
    ("status", "advice", "finding"),
    [
        ("disabled", "1 defect to repair in this environment: mlx-patches enable --host", True),
        ("applied", "nothing to do; active patches: 1", False),
        ("pending", "nothing to do; active patches: 1", False),
        ("not-affected", "no known defect here", False),
        ("drifted", "enabling does not repair fix: see the reasons (-v)", True),
        ("conflict", "enabling does not repair fix: see the reasons (-v)", True),
    ],
)
def test_advice_is_one_line(server, status, advice, finding):
    server()
    found = report(outcome(status))
    assert found.advice.startswith(f"their-server 1.2: {advice}")
    assert "\n" not in found.advice
    assert found.finding is finding


def test_advice_lists_what_enable_repairs(server):
    server()
    rows = (outcome("disabled", "a"), outcome("drifted", "b"), outcome("disabled", "b"))
    found = report(*rows, outcome("lost", "c"), outcome("applied", "d"))
    assert (found.open, found.blocked, found.repaired) == (("a", "b"), ("b", "c"), ("d",))
    assert found.advice == (
        "their-server 1.2: 2 defects to repair in this environment: mlx-patches enable --host"
        " their-server; enabling does not repair b, c: see the reasons (-v)"
    )
    assert found.as_dict()["blocked"] == ["b", "c"]


@pytest.mark.parametrize(
    ("enabled_for", "advice", "status"),
    [
        ("", "1 defect to repair in this environment: mlx-patches enable --host", "disabled"),
        ("their_server", "nothing to do; active patches: 1", "pending"),
        (
            "other",
            "1 defect to repair in this environment: mlx-patches enable (currently only"
            " enabled for other)",
            "disabled",
        ),
    ],
)
def test_advice_on_enabled_host(server, monkeypatch, enabled_for, advice, status):
    server()
    monkeypatch.setattr(session, "_session", session_for(patch_of("attend"), always=["fix"]))
    monkeypatch.setattr(started, "host", enabled_for)
    audit = mlx_patches.audit(host="their-server")
    assert audit.host_report.advice.startswith(f"their-server 1.2: {advice}")
    assert [o.status for o in audit.outcomes if o.patch == "fix"] == [status]
    assert audit.active is bool(enabled_for)


def test_unmet_requirement_comes_first(server):
    server("fake-lm>=2", "fake-lm<9; python_version < '3'", "no-such-thing>=1")
    found = report(outcome("disabled"))
    assert found.unmet == ("fake-lm>=2 (installed: 1.0)",)
    assert "requires fake-lm>=2 (installed: 1.0)" in found.advice


def test_requirement_by_any_spelling(server):
    server("Fake.LM>=2")
    found = hosts.unmet("Their_Server", [HOST, Installed("fake_lm", "1.0")])
    assert found == ("fake-lm>=2 (installed: 1.0)",)


def test_broken_set_comes_first(server):
    server("fake-lm>=2")
    broken = BrokenSet({"their-server": "<2", "fake-lm": ">=1"}, "it dies", "take another")
    assert report(broken=[broken]).advice == "their-server 1.2: it dies: take another"
    spelled = hosts.report(HOST, "Their_Server", [HOST, LM], [broken], [])
    assert spelled.broken == (broken,)
    assert report(broken=[broken]).as_dict()["advice"] == "their-server 1.2: it dies: take another"


def test_missing_host_names_installed_hosts():
    here = [Installed("vllm-mlx", "0.6.0"), LM]
    with pytest.raises(MlxPatchesError, match=r"omlx is not installed .* hosts: vllm-mlx"):
        hosts.report(None, "omlx", here, [], [])


def test_host_packages(site):
    def install(name, *requires):
        lines = "".join(f"Requires-Dist: {one}\n" for one in requires)
        site.install(name, metadata=f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n{lines}")

    install("mlx-lm")
    install("mlx-vlm", "mlx-lm>=1")
    install("one-server", "mlx-vlm", "numpy")
    install("two-server", "mlx-lm ; extra == 'lm'")
    assert hosts.list_used("One_Server") == {"one-server", "mlx-vlm", "mlx-lm"}
    assert hosts.list_used("mlx-lm") == {"mlx-lm"}
    assert hosts.list_used("two-server") == {"two-server", "mlx-vlm", "mlx-lm"}
    assert hosts.list_used("not-there") >= {"mlx-vlm", "mlx-lm"}
