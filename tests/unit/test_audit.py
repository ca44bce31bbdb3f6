"""The report's logic; tests/releases/test_cli.py runs it on real releases."""

import pytest

from mlx_patches.auditing.audit import Audit
from mlx_patches.core.outcome import Outcome, Status
from mlx_patches.matrix.matrix import CompatMatrix

MATRIX = CompatMatrix.builtin()


def report(*outcomes, broken_sets=(), active=False):
    return Audit((), tuple(broken_sets), tuple(outcomes), {}, active)


def row(status, by_choice=False):
    return Outcome("a-patch", "mlx-lm", "mlx_lm.x:y", Status(status), "because", by_choice)


@pytest.mark.parametrize("status", Status)
def test_exit_code_of_each_status(status):
    fine = {"applied", "pending", "not-affected", "fixed-upstream", "absent"}
    assert report(row(status)).exit_code() == (
        0 if status in fine else 2 if status == "drifted" else 1
    )


def test_findings_and_exit_codes():
    assert report(row("drifted"), row("disabled")._replace(patch="b")).exit_code() == 1
    audit = report(row("disabled", by_choice=True))
    assert audit.exit_code() == 0
    assert audit.exit_code(strict=True) == 1
    assert report(row("failed")).findings == ("a-patch mlx_lm.x:y: failed: because",)


@pytest.mark.parametrize(
    ("mlx", "mlx_lm", "more", "broken"),
    [
        ("0.31.1", "0.31.3", {}, True),
        ("0.31.2", "0.31.3", {}, False),
        ("0.31.1", "0.31.2", {}, False),
        ("0.31.1", "0.32.0", {}, True),
        # A transformers that mlx-lm cannot be imported with.
        ("0.31.2", "0.31.3", {"transformers": "5.12.1"}, False),
        ("0.31.2", "0.31.3", {"transformers": "5.13.0"}, True),
        ("0.31.2", "0.31.3", {"transformers": "5.13.1"}, False),
    ],
)
def test_broken_sets(mlx, mlx_lm, more, broken):
    versions = {"mlx": mlx, "mlx-lm": mlx_lm, **more}
    found = [one for one in MATRIX.broken_sets if one.matches(versions)]
    assert bool(found) is broken
    audit = report(broken_sets=found)
    assert audit.exit_code() == int(broken)
    assert not found or more or "install mlx>=0.31.2" in audit.findings[0]


@pytest.mark.parametrize(
    ("mlx", "devices", "words"),
    [
        ("0.31.2", ("metal",), ["fast.rope", "Stream(gpu, 1)"]),
        ("0.31.2", (), []),
        ("0.32.1", ("metal",), ["Stream(gpu, 1)"]),
        ("0.32.2", ("metal",), ["reads the first row's keys", "Stream(gpu, 1)"]),
    ],
)
def test_unrepaired_defect_is_warning(mlx, devices, words):
    versions = {"mlx": mlx, "mlx-vlm": "0.4.4", "mlx-lm": "0.31.3"}
    found = tuple(one for one in MATRIX.warnings if one.matches(versions, devices))
    assert len(found) == len(words)
    assert all(word in one.effect for word, one in zip(words, found, strict=True))
    audit = Audit((), (), (), {}, False, warnings=found)
    assert audit.exit_code() == 0
    assert len(audit.as_dict()["warnings"]) == len(words)
