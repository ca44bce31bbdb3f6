"""The emulated device without MLX: what is compiled, what is refused, what a cell says."""

from __future__ import annotations

import re
import sys

import pytest
from click.testing import CliRunner

from mlx_patches import MlxPatchesError
from mlx_patches.cli import cli
from mlx_patches.evidence.words import DEVICES, METAL_EMULATED
from mlx_patches.lab import Cell, Family, child, record, report
from mlx_patches.lab.metal_emulated import library
from mlx_patches.lab.metal_emulated.journal import Journal, NotRun
from mlx_patches.lab.metal_emulated.sites import reached, sites
from mlx_patches.lab.metal_emulated.source import ATTRIBUTES, Input, Source
from mlx_patches.lab.runner import Row, tasks

FLOAT = Input("float", False)
needs_compiler = pytest.mark.skipif(library.compiler() is None, reason=library.missing())


def parameters(source, inputs=(FLOAT,), outputs=("float",), template=()):
    """The parameters of the C++ function, and what is passed to it."""
    text = source.text(inputs, outputs, template)
    (signature,) = re.findall(r"emulated_kernel\((.*)\) \{", text)
    (passed,) = re.findall(r"emulated_kernel(?:<.*>)?\((.*)\);", text)
    return signature.split(", "), passed.split(", ")


def test_an_input_comes_with_what_the_source_names():
    body = "out[0] = x[x_strides[0] * x_shape[1]] + y[y_ndim] + z;"
    source = Source("k", ("x", "y", "z"), ("out",), body)
    signature, passed = parameters(source, (FLOAT, FLOAT, Input("bfloat16_t", True)))
    assert signature == [
        *("const float* x", "const int* x_shape", "const int64_t* x_strides"),
        *("const float* y", "const int& y_ndim", "const bfloat16_t& z", "float* out"),
    ]
    assert [re.sub(r".*p\[(\d)\]", r"\1", one) for one in passed] == list("0123456")
    assert passed[4:6] == ["*(const int*)p[4]", "*(const bfloat16_t*)p[5]"]


def test_a_scalar_has_no_shape():
    source = Source("k", ("x",), ("out",), "out[0] = x; // x_shape, as of an array")
    assert parameters(source, (Input("float", True),))[0] == ["const float& x", "float* out"]


def test_only_the_body_is_searched():
    source = Source("k", ("x",), ("out",), "out[0] = f(x);", header="// x_shape threads_per_grid")
    assert parameters(source)[0] == ["const float* x", "float* out"]


def test_attributes_are_those_that_the_source_names():
    body = "out[thread_position_in_grid.x] = simdgroup_index_in_threadgroup;"
    signature, passed = parameters(Source("k", (), ("out",), body), ())
    assert signature[1:] == ["uint simdgroup_index_in_threadgroup", "uint3 thread_position_in_grid"]
    assert passed[1:] == ["EMU_THREAD.index / 32", "EMU_THREAD.in_grid"]


def test_every_attribute_of_mlx_is_known():
    body = " ".join(ATTRIBUTES)
    assert len(parameters(Source("k", (), ("out",), body), ())[0]) == 1 + len(ATTRIBUTES) == 21


def test_a_template_has_types_numbers_and_truths():
    source = Source("k", (), ("out",), "out[0] = T(N) * B;")
    text = source.text((), ("float",), [("T", "float16_t"), ("N", 3), ("B", True)])
    assert "template <typename T, int N, bool B>" in text
    assert "emulated_kernel<float16_t, 3, true>(" in text
    assert "template" not in source.text((), ("float",), ())


def test_outputs_can_be_atomic():
    source = Source("k", (), ("out",), "", atomic=True)
    assert parameters(source, ())[0] == ["atomic<float>* out"]


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
def test_what_cpp_spells_in_another_way(metal, cpp):
    assert f"\n{cpp}\n" in Source("k", (), ("out",), metal).text((), ("float",), ())


def test_metals_own_headers_are_in_the_shim():
    header = "#include <metal_stdlib>\n#  include <metal_simdgroup>\n#include <other>"
    text = Source("k", (), ("out",), "", header=header).text((), ("float",), ())
    assert "<metal" not in text
    assert "#include <other>" in text


def test_threads_wait_only_where_something_lets_them_wait():
    def waits(body):
        return "group, true, body" in Source("k", (), ("out",), body).text((), ("float",), ())

    assert waits("out[0] = simd_sum(1.0f);")
    assert waits("threadgroup_barrier(mem_flags::mem_device);")
    assert not waits("out[0] = simdgroup_index_in_threadgroup;")


@needs_compiler
def test_a_kernel_that_the_shim_does_not_know_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setattr(library, "_folder", lambda: tmp_path)
    text = Source("k", (), ("out",), "out[0] = simd_dance(1.0f);").text((), ("float",), ())
    with pytest.raises(NotRun, match=r"^kernel k did not compile: .*simd_dance.*$"):
        library.load(text, "k")
    assert list(tmp_path.iterdir()) == []


@needs_compiler
def test_a_compiled_kernel_is_kept(monkeypatch, tmp_path):
    monkeypatch.setattr(library, "_folder", lambda: tmp_path)
    text = Source("k", (), ("out",), "out[0] = 1.0f;").text((), ("float",), ())
    library.load(text, "k")
    (kept,) = tmp_path.iterdir()
    before = kept.stat().st_mtime_ns
    library.load(text, "k")
    assert [one.stat().st_mtime_ns for one in tmp_path.iterdir()] == [before]


def test_without_a_compiler_one_line_says_so(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(library.platform, "machine", lambda: "x86_64")
    said = "metal-emulated compiles kernels as C++, and no compiler is here: install g++"
    assert library.missing() == said
    with pytest.raises(NotRun, match=re.escape(said)):
        library.load("", "k")
    done = CliRunner().invoke(cli, ["lab", "--device", METAL_EMULATED])
    # The command's `main` prints it as one line and exits with 2.
    assert (type(done.exception), str(done.exception)) == (MlxPatchesError, said)


def test_another_system_is_refused(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert library.missing().startswith("metal-emulated needs Linux on x86_64 or aarch64, not ")


def test_walks_and_references_have_no_device():
    for flags in (["--scenario", "walks"], ["--reference"]):
        done = CliRunner().invoke(cli, ["lab", "--device", METAL_EMULATED, *flags])
        assert done.exit_code == 2
        assert "--device" in done.output


@pytest.fixture
def journal(monkeypatch):
    found = Journal()
    monkeypatch.setattr(child, "emulated", lambda: found)
    return found


GREEN, RED, NONE = (Cell(verdict, "said") for verdict in ("green", "red", "n/a"))


@pytest.mark.parametrize(
    ("noted", "before", "verdict", "detail"),
    [
        ({}, GREEN, "green", "said"),
        ({"faults": "k reads outside"}, GREEN, "red", "said; k reads outside"),
        ({"faults": "k reads outside"}, NONE, "red", "said; k reads outside"),
        ({"faults": "said"}, RED, "red", "said"),
        ({"unwritten": "k leaves 3"}, GREEN, "green", "said"),
        ({"unwritten": "k leaves 3"}, RED, "red", "said; k leaves 3"),
        ({"not_run": "k did not compile"}, GREEN, "not-run", "k did not compile"),
        ({"not_run": "no", "faults": "k reads outside"}, RED, "not-run", "no"),
    ],
)
def test_a_cell_says_what_its_kernels_did(journal, noted, before, verdict, detail):
    journal.launched["mlx_lm.models.ssm:58"] = 3
    for kind, said in noted.items():
        getattr(journal, kind)[said] = None
    cell, facts = child.of_kernels(before)
    assert (cell.verdict, cell.detail) == (verdict, detail)
    assert facts == {"kernels": "mlx_lm.models.ssm:58"}
    # The next cell begins with an empty page.
    assert child.of_kernels(GREEN) == (GREEN, {"kernels": ""})


def test_without_emulation_a_cell_says_nothing_of_kernels():
    assert child.of_kernels(GREEN) == (GREEN, {})


def row(**more):
    place = ("mlx-lm 1.0", "mlx-lm:a", False)
    return Row(*place, **{"scenario": "merge", "verdict": "green", **more})


def test_a_cell_that_was_not_run_is_not_in_evidence():
    rows = [row().as_dict(), row(scenario="trim", verdict="not-run", detail="k").as_dict()]
    assert record.letters(rows) == {"a": {"merge": "g"}}
    assert record.details(rows) == {}


def test_its_name_is_never_metal():
    assert DEVICES[METAL_EMULATED] == "Metal-only code, emulated on a CPU"


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


def test_the_kernels_of_a_release_are_read_from_its_files(release):
    found = [str(one).removeprefix("mlx_lm.models.ssm:") for one in sites("mlx_lm")]
    assert found == ["5 ssm_kernel", "10 second", "11"]


def test_a_kernel_that_ran_is_found_by_its_line(release):
    ran, left = reached("mlx_lm", ["mlx_lm.models.ssm:6", "mlx_lm.models.other:10"])
    assert [one.name for one in ran] == ["ssm_kernel"]
    assert [one.name for one in left] == ["second", ""]


def test_the_lab_lists_what_was_not_reached(release):
    emulated = row(device=METAL_EMULATED, kernels="mlx_lm.models.ssm:5")
    assert report.kernels([row()]) == {}
    assert report.kernels([emulated]) == {
        "mlx_lm": {
            "ran": ["mlx_lm.models.ssm:5 ssm_kernel"],
            "not_reached": ["mlx_lm.models.ssm:10 second", "mlx_lm.models.ssm:11"],
        }
    }
    lines = [one for one in report.shown([emulated]) if isinstance(one, str)]
    assert lines[1:] == [
        "Metal-only code, emulated on a CPU:",
        "  mlx_lm: 1 of 3 kernels ran",
        "  not reached: mlx_lm.models.ssm:10 second",
        "  not reached: mlx_lm.models.ssm:11",
    ]


def test_the_child_gets_the_device(monkeypatch):
    monkeypatch.setattr("mlx_patches.lab.runner.chosen", lambda *args: [Family("mlx-lm", "llama")])
    monkeypatch.setattr(library, "missing", lambda: "")
    (task,) = tasks(mode="unpatched", device=METAL_EMULATED)
    assert task.command()[-60:].count(METAL_EMULATED) == 1
