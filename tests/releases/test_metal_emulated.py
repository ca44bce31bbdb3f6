import json
import subprocess
import sys
from importlib.metadata import version

import mlx.core as mx
import numpy as np
import pytest
from packaging.version import Version

from mlx_patches.activation.children import child_environment
from mlx_patches.evidence.words import CPU, METAL_EMULATED
from mlx_patches.lab import Family, runner
from mlx_patches.lab.families import source_files
from mlx_patches.lab.metal_emulated import library
from mlx_patches.lab.metal_emulated.journal import JOURNAL, Fault, NotRun
from mlx_patches.lab.metal_emulated.kernel import Kernel
from mlx_patches.lab.metal_emulated.mac import compile_or_run

# tests/unit/test_metal_emulated.py tests the messages without a compiler.
pytestmark = pytest.mark.skipif(bool(library.missing()), reason=library.missing())


@pytest.fixture(autouse=True)
def forgotten():
    JOURNAL.clear()
    yield
    JOURNAL.clear()


def kernel(source, inputs=("x",), **more):
    return Kernel("k", list(inputs), ["out"], source, **more)


def launch(made, inputs, shape=(4,), dtype=mx.float32, threads=None, group=32, **more):
    """The result of one launch, by default with one thread per value."""
    grid = (threads or max(1, int(np.prod(shape))), 1, 1)
    place = {"grid": grid, "threadgroup": (group, 1, 1)}
    (out,) = made(inputs=inputs, output_shapes=[shape], output_dtypes=[dtype], **place, **more)
    return np.array(out.astype(mx.float32) if dtype == mx.bfloat16 else out)


INDEX = "uint i = thread_position_in_grid.x;"
X = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.mark.parametrize("contiguous", [True, False])
def test_kernel_strides(contiguous):
    body = f"""{INDEX}
    uint row = i / x_shape[1], column = i % x_shape[1];
    out[i] = x[row * x_strides[0] + column * x_strides[1]] + 100 * x_strides[1] + x_ndim;"""
    made = kernel(body, ensure_row_contiguous=contiguous)
    turned = mx.array(X).T
    expected = X.T + 100 * (1 if contiguous else 4) + 2
    assert (launch(made, [turned], (4, 3)) == expected).all()


def test_template_per_value():
    made = kernel(f"{INDEX} out[i] = static_cast<T>(B ? x[i] * N : 0);")
    for kind, number, truth in (
        (mx.float32, 2, True),
        (mx.bfloat16, 3, True),
        (mx.int32, 5, False),
    ):
        template = [("T", kind), ("N", number), ("B", truth)]
        got = launch(made, [mx.array(X[1])], dtype=kind, template=template)
        assert (got == X[1] * number * truth).all()


def test_arguments_and_atomics():
    made = kernel(f"{INDEX} out[i] = x[i] * y;", ("x", "y"))
    assert (launch(made, [mx.array(X[1]), 3.0]) == X[1] * 3).all()
    body = f"{INDEX} atomic_fetch_add_explicit(&out[i % 2], x[i], memory_order_relaxed);"
    made = kernel(body, atomic_outputs=True)
    got = launch(made, [mx.array(X.ravel())], (2,), threads=12, init_value=0)
    assert got.tolist() == [X.ravel()[::2].sum(), X.ravel()[1::2].sum()]


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.int32])
def test_initial_value(dtype):
    made = kernel(f"{INDEX} if (i == 1) out[i] = x[i];")
    got = launch(made, [mx.array(X[1])], dtype=dtype, init_value=7)
    assert got.tolist() == [7, 5, 7, 7]
    assert not JOURNAL.unwritten


def test_unwritten_values_are_noted():
    made = kernel(f"{INDEX} if (i == 1) out[i] = x[i];")
    got = launch(made, [mx.array(X[1])])
    assert np.isnan(got).tolist() == [True, False, True, True]
    assert list(JOURNAL.unwritten) == ["kernel k leaves 3 of 4 values unwritten"]
    assert not JOURNAL.faults


# 40 threads in threadgroups of 64: one smaller threadgroup, whose last SIMD group has 8 threads.
@pytest.mark.parametrize("group", [32, 64])
def test_smaller_simd_group(group):
    values = np.arange(40, dtype=np.float32)
    made = kernel(f"{INDEX} out[i] = simd_sum(x[i]) + 1000 * threads_per_threadgroup.x;")
    got = launch(made, [mx.array(values)], (40,), group=group)
    sizes = np.repeat([32, 8], [32, 8]) if group == 32 else np.full(40, 40)
    sums = np.repeat([values[:32].sum(), values[32:].sum()], [32, 8])
    assert (got == sums + 1000 * sizes).all()
    assert not JOURNAL.faults


def test_shared_memory_and_barrier():
    body = f"""{INDEX} threadgroup float all[64];
    uint t = thread_position_in_threadgroup.x;
    all[t] = x[i];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    out[i] = all[63 - t];"""
    values = np.arange(128, dtype=np.float32)
    got = launch(kernel(body), [mx.array(values)], (128,), group=64)
    assert (got == values.reshape(2, 64)[:, ::-1].ravel()).all()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("out[i] = x[i + 4];", "kernel k reads or writes outside x"),
        ("out[i + 4] = x[i];", "kernel k reads or writes outside out"),
    ],
)
def test_out_of_bounds_is_fault(body, message):
    with pytest.raises(Fault, match=message):
        launch(kernel(INDEX + body), [mx.array(X[1])])
    assert list(JOURNAL.faults) == [message]
    # The process goes on.
    assert launch(kernel(f"{INDEX} out[i] = x[i];"), [mx.array(X[1])]).tolist() == X[1].tolist()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "if (i < 2) threadgroup_barrier(mem_flags::mem_none); out[i] = x[i];",
            "some threads do not reach a barrier that others wait at",
        ),
        (
            "out[i] = x[i]; if (i < 2) out[i] = simd_shuffle(x[i], 3);",
            "a SIMD operation reads a thread that takes no part in it",
        ),
    ],
)
def test_diverging_threads_are_fault(body, message):
    launch(kernel(INDEX + body), [mx.array(X[1])])
    assert list(JOURNAL.faults) == [f"kernel k: {message}"]


def test_unknown_kernel_is_not_run():
    made = kernel("out[0] = simd_dance(x[0]);")
    for _ in range(2):
        with pytest.raises(NotRun, match=r"^kernel k did not compile: .*simd_dance"):
            launch(made, [mx.array(X[1])])
    assert len(JOURNAL.not_run) == 1
    assert not JOURNAL.launched


def test_journal_names_call_site():
    launch(kernel(f"{INDEX} out[i] = x[i];"), [mx.array(X[1])])
    (site,) = JOURNAL.launched
    assert site.startswith(f"{__name__}:")


def test_mlx_refusals_are_kept():
    made = kernel(f"{INDEX} out[i] = x[i];")
    with pytest.raises(ValueError, match=r"Expected `inputs` to have size 1 but got size 2"):
        launch(made, [mx.array(X), mx.array(X)])
    with pytest.raises(ValueError, match=r"Thread group size \(2048\) is greater"):
        launch(made, [mx.array(X)], group=2048)


def test_compiled_function():
    made = kernel(f"{INDEX} out[i] = 2 * x[i];")

    def twice(x):
        place = {"grid": (4, 1, 1), "threadgroup": (4, 1, 1)}
        return made(inputs=[x], output_shapes=[x.shape], output_dtypes=[x.dtype], **place)[0] + 1

    compiled = compile_or_run(mx.compile)
    for function in (compiled(twice), compiled(shapeless=True)(twice)):
        assert np.array(function(mx.array(X[1]))).tolist() == (2 * X[1] + 1).tolist()


def cells(name, scenarios, device):
    task = runner.Task(Family(*name.split(":")), True, scenarios, every_patch=True, device=device)
    return runner.measure(task, 300)


# Families, each with the module of a kernel that only Metal runs.
FAMILIES = {
    "mlx-lm:mamba2": "mlx_lm.models.ssm",
    "mlx-lm:qwen3_next": "mlx_lm.models.gated_delta",
    "mlx-vlm:qwen3_5": "gated_delta",
}
MORE = ("mlx-lm:qwen3_next",)


def here(name):
    return any(file.exists() for file in source_files(Family(*name.split(":"))))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name in MORE else [])
        for name in filter(here, FAMILIES)
    ],
)
def test_metal_branch_is_right(name):
    (row,) = cells(name, ("equal-lengths",), METAL_EMULATED)
    assert (row.device, row.verdict) == (METAL_EMULATED, "green"), row.detail
    assert any(FAMILIES[name] in site for site in row.kernels.split()), row.kernels


@pytest.mark.slow
@pytest.mark.parametrize("name", list(filter(here, FAMILIES)))
def test_verdicts_equal_cpu(name):
    names = ("left-padded", "right-padded", "chunked-batch", "merge", "filter", "state", "engine")
    plain, emulated = (cells(name, names, device) for device in ("", METAL_EMULATED))
    assert {row.device for row in plain} == {CPU}
    assert {row.device for row in emulated} == {METAL_EMULATED}
    both = [{row.scenario: row.verdict for row in rows} for rows in (plain, emulated)]
    assert both[0] == both[1]


# Runs the lab's child with one kernel's source changed.
PLANTED = """
import os, sys
from mlx_patches.lab import child
from mlx_patches.lab.metal_emulated import library
family, kernel, old, new, *rest = sys.argv[1:]
load = library.load
def planted(text, name):
    if name == kernel:
        if old not in text:
            os._exit(3)
        text = text.replace(old, new)
    return load(text, name)
library.load = planted
child.main([family, "--device", "metal-emulated", "--patched", "--every-patch", *rest])
"""
# A family, a kernel that it launches, and a line of its source with the row of a batch forgotten.
FAULTS = [
    ("mlx-lm:mamba2", "ssm_kernel", "state_in + n * Dh * Ds", "state_in + h_idx * Dh * Ds"),
    ("mlx-lm:kimi_linear", "gated_delta_step_vec", "auto b_idx = n / Hv;", "auto b_idx = 0 * n;"),
    ("mlx-lm:qwen3_next", "gated_delta_step_packed_btree", "beta + b_idx * T * Hv", "beta"),
    ("mlx-lm:qwen3_next", "gated_delta_step_mask", "mask[b_idx * T + t]", "mask[t]"),
    ("mlx-lm:rwkv7", "wkv7_kernel", "auto b_idx = n / H;", "auto b_idx = 0 * n;"),
    ("mlx-lm:kimi_k3", "attnres_mix", "inv_rms[k * N + n]", "inv_rms[k * N]"),
    ("mlx-lm:deepseek_v41", "deepseek_v41_sinkhorn", "comb[n * HC * HC + k]", "comb[k]"),
    ("mlx-lm:bitnet", "bitlinear_matmul", "x[batch_idx * in_features", "x[0 * in_features"),
    ("mlx-lm:muse_spark", "expert_routing", "logits + size_t(token) * E", "logits"),
    ("mlx-lm:muse_spark", "post_expert_norm_combine", "weights[row * K + k]", "weights[k]"),
    ("mlx-lm:muse_spark", "qk_norm_rope", "offset[(n / seq_len) * OFFSET_STRIDE]", "offset[0]"),
    ("mlx-vlm:qwen2_vl", "mrope_apply_half_split_32_3d", "(axis * q_bsz + b)", "(axis * q_bsz)"),
    ("mlx-vlm:qwen3_5", "gated_delta_step", "auto b_idx = n / Hv;", "auto b_idx = 0 * n;"),
]


def has_kernel(kernel):
    """Whether the release has it: 0.32.0 brought a second kernel of gated delta's step."""
    return kernel != "gated_delta_step_packed_btree" or Version(version("mlx-lm")) >= Version(
        "0.32.0"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kernel", "old", "new"),
    [
        pytest.param(*one, id=f"{one[0]}-{one[1]}")
        for one in FAULTS
        if here(one[0]) and has_kernel(one[1])
    ],
)
def test_planted_fault_is_found(name, kernel, old, new):
    scenarios = ("equal-lengths", "left-padded", "right-padded", "chunked-solo")
    command = [sys.executable, "-c", PLANTED, name, kernel, old, new]
    for scenario in scenarios:
        command += ["--scenario", scenario]
    done = subprocess.run(
        command, capture_output=True, text=True, env=child_environment(), check=False
    )
    assert done.returncode == 0, done.stderr[-400:]
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert "red" in [one["verdict"] for one in found], found
