"""The emulated device without MLX: compilation, refusals, and details of cells."""

import re
import sys

import pytest
from click.testing import CliRunner

from mlx_patches import MlxPatchesError
from mlx_patches.cli import cli
from mlx_patches.evidence.words import METAL_EMULATED
from mlx_patches.lab import Cell, child, record, report
from mlx_patches.lab.metal_emulated import library
from mlx_patches.lab.metal_emulated.journal import Journal, NotRun
from mlx_patches.lab.metal_emulated.sites import sites, split_by_reached
from mlx_patches.lab.metal_emulated.source import Source
from mlx_patches.lab.runner import Row

needs_compiler = pytest.mark.skipif(library.compiler() is None, reason=library.missing())


@pytest.mark.parametrize(
    ("metal", "cpp"),
    [
        ("threadgroup float sums[32];", "static float sums[32];"),
        ("threadgroup vec<T, 4> one;", "static vec<T, 4> one;"),
        ("threadgroup float* sums = all;", "threadgroup float* sums = all;"),
        ("float f(threadgroup const float* sums) {", "float f(threadgroup const float* sums) {"),
        ("uint i [[thread_position_in_grid]];", "uint i ;"),
    ],
)
def test_metal_spelled_as_cpp(metal, cpp):
    assert f"\n{cpp}\n" in Source("k", (), ("out",), metal).text((), ("float",), ())


def test_only_synchronizing_kernels_wait():
    def waits(body):
        return "group, true, body" in Source("k", (), ("out",), body).text((), ("float",), ())

    assert waits("out[0] = simd_sum(1.0f);")
    assert waits("threadgroup_barrier(mem_flags::mem_device);")
    assert not waits("out[0] = simdgroup_index_in_threadgroup;")


@needs_compiler
def test_unknown_kernel_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setattr(library, "_folder", lambda: tmp_path)
    text = Source("k", (), ("out",), "out[0] = simd_dance(1.0f);").text((), ("float",), ())
    with pytest.raises(NotRun, match=r"^kernel k did not compile: .*simd_dance.*$"):
        library.load(text, "k")
    assert list(tmp_path.iterdir()) == []


def test_missing_compiler_is_one_line(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(library.platform, "machine", lambda: "x86_64")
    message = "metal-emulated compiles kernels as C++, and no compiler is here: install g++"
    assert library.missing() == message
    with pytest.raises(NotRun, match=re.escape(message)):
        library.load("", "k")
    done = CliRunner().invoke(cli, ["lab", "--device", METAL_EMULATED])
    # The command's `main` prints it as one line and exits with 2.
    assert (type(done.exception), str(done.exception)) == (MlxPatchesError, message)


@pytest.fixture
def journal(monkeypatch):
    found = Journal()
    monkeypatch.setattr(child, "emulate_metal", lambda: found)
    return found


GREEN, RED, NONE = (Cell(verdict, "detail") for verdict in ("green", "red", "n/a"))


@pytest.mark.parametrize(
    ("noted", "before", "verdict", "detail"),
    [
        ({}, GREEN, "green", "detail"),
        ({"faults": "k reads outside"}, GREEN, "red", "detail; k reads outside"),
        ({"faults": "k reads outside"}, NONE, "red", "detail; k reads outside"),
        ({"faults": "detail"}, RED, "red", "detail"),
        ({"unwritten": "k leaves 3"}, GREEN, "green", "detail"),
        ({"unwritten": "k leaves 3"}, RED, "red", "detail; k leaves 3"),
        ({"not_run": "k did not compile"}, GREEN, "not-emulated", "k did not compile"),
        ({"not_run": "no", "faults": "k reads outside"}, RED, "not-emulated", "no"),
    ],
)
def test_cell_includes_kernel_results(journal, noted, before, verdict, detail):
    journal.launched["mlx_lm.models.ssm:58"] = 3
    for kind, message in noted.items():
        getattr(journal, kind)[message] = None
    cell, facts = child.of_kernels(before)
    assert (cell.verdict, cell.detail) == (verdict, detail)
    assert facts == {"kernels": "mlx_lm.models.ssm:58"}
    # The next cell begins with an empty page.
    assert child.of_kernels(GREEN) == (GREEN, {"kernels": ""})


def test_cell_without_emulation():
    assert child.of_kernels(GREEN) == (GREEN, {})


def row(**more):
    place = ("mlx-lm 1.0", "mlx-lm:a", False)
    return Row(*place, **{"scenario": "merge", "verdict": "green", **more})


def test_skipped_cell_is_no_evidence():
    rows = [row().as_dict(), row(scenario="trim", verdict="not-emulated", detail="k").as_dict()]
    assert record.letters(rows) == {"a": {"merge": "g"}}
    assert record.details(rows) == {}


@pytest.fixture
def release(site):
    site.write(
        "mlx_lm/models/ssm.py",
        """
        import mlx.core as mx

        def make():
            return mx.fast.metal_kernel(
                name="ssm_kernel",
                source="",
            )

        named = mx.fast.metal_kernel("second", [], [], "")
        unnamed = mx.fast.metal_kernel(name=f"k{1}")
        # mx.fast.metal_kernel(name="none")
        """,
    )
    site.write("mlx_lm/__init__.py", "")
    return site


def test_kernels_are_read_from_files(release):
    found = [str(one).removeprefix("mlx_lm.models.ssm:") for one in sites("mlx_lm")]
    assert found == ["5 ssm_kernel", "10 second", "11"]


def test_kernel_is_found_by_line(release):
    ran, left = split_by_reached("mlx_lm", ["mlx_lm.models.ssm:6", "mlx_lm.models.other:10"])
    assert [one.name for one in ran] == ["ssm_kernel"]
    assert [one.name for one in left] == ["second", ""]


def test_lab_lists_unreached_kernels(release):
    emulated = row(device=METAL_EMULATED, kernels="mlx_lm.models.ssm:5")
    assert report.kernels([row()]) == {}
    assert report.kernels([emulated]) == {
        "mlx_lm": {
            "ran": ["mlx_lm.models.ssm:5 ssm_kernel"],
            "not_reached": ["mlx_lm.models.ssm:10 second", "mlx_lm.models.ssm:11"],
        }
    }
    lines = [one for one in report.show_rows([emulated]) if isinstance(one, str)]
    assert lines[1:] == [
        "Metal-only code, emulated on a CPU:",
        "  mlx_lm: 1 of 3 kernels ran",
        "  not reached: mlx_lm.models.ssm:10 second",
        "  not reached: mlx_lm.models.ssm:11",
    ]
