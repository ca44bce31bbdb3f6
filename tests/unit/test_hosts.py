"""What the audit says of a host server."""

from __future__ import annotations

import pytest

from mlx_patches import MlxPatchesError, _hosts
from mlx_patches._distributions import Installed
from mlx_patches._ledger import Outcome, Status
from mlx_patches._matrix import BrokenSet

HOST = Installed("their-server", "1.2")
LM = Installed("fake-lm", "1.0")


def outcome(status, patch="fix"):
    return Outcome(patch, "fake-lm", "fake_lm.x:y", Status(status), "because")


def report(*outcomes, broken=()):
    return _hosts.report(HOST, HOST.name, [HOST, LM], broken, outcomes)


@pytest.fixture
def server(fake):
    """Installs the host with these requirements."""

    def install(*requirements):
        lines = "".join(f"Requires-Dist: {one}\n" for one in requirements)
        head = "Metadata-Version: 2.1\nName: their-server\nVersion: 1.2\n"
        fake.install("their-server", "1.2", metadata=head + lines)

    return install


@pytest.mark.parametrize(
    ("status", "said", "finding"),
    [
        ("disabled", "1 defect of this environment to repair: mlx-patches enable --host", True),
        ("applied", "nothing to do; active patches: 1", False),
        ("pending", "nothing to do; active patches: 1", False),
        ("not-affected", "nothing known is wrong with it here", False),
    ],
)
def test_the_advice_is_one_line(server, status, said, finding):
    server()
    found = report(outcome(status))
    assert found.advice.startswith(f"their-server 1.2: {said}")
    assert "\n" not in found.advice
    assert found.finding is finding


def test_a_requirement_that_does_not_hold_comes_first(server):
    server("fake-lm>=2", "fake-lm<9; python_version < '3'", "no-such-thing>=1")
    found = report(outcome("disabled"))
    assert found.unmet == ("fake-lm>=2 (installed: 1.0)",)
    assert "requires fake-lm>=2 (installed: 1.0)" in found.advice


def test_a_set_that_cannot_work_comes_before_all(server):
    server("fake-lm>=2")
    broken = BrokenSet({"their-server": "<2", "fake-lm": ">=1"}, "it dies", "take another")
    assert report(broken=[broken]).advice == "their-server 1.2: it dies: take another"
    assert report(broken=[broken]).as_dict()["advice"] == "their-server 1.2: it dies: take another"


def test_a_host_that_is_not_there_is_an_error_that_names_those_that_are():
    here = [Installed("vllm-mlx", "0.6.0"), LM]
    with pytest.raises(MlxPatchesError, match=r"omlx is not installed .* hosts: vllm-mlx"):
        _hosts.report(None, "omlx", here, [], [])
