"""The kernels that ``mx.fast.metal_kernel`` returns on this device."""

import ctypes
import functools
import math
import sys
import threading
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from . import library
from .journal import JOURNAL, Fault, NotRun
from .memory import Guarded
from .source import BESIDE, Input, Source

# The largest threadgroup on Apple's GPUs.
MOST_THREADS = 1024
# MLX's dtypes: their names in kernels, and numpy's dtypes of the same size.
_NAMES = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16")
TYPES = {
    mx.bool_: ("bool", np.bool_),
    mx.float32: ("float", np.float32),
    mx.bfloat16: ("bfloat16_t", np.uint16),
    **{getattr(mx, name): (f"{name}_t", getattr(np, name)) for name in _NAMES},
}
# The counts that ``dispatch`` in shim.h returns, and their faults; None: not a fault.
_REPORT = (
    None,  # SIMD operations in which not all threads take part
    "some threads do not reach a barrier that others wait at",
    "a SIMD operation reads a thread that takes no part in it",
    None,  # SIMD operations
    None,  # barriers
)
_LOCK = threading.Lock()


class InTrace(BaseException):
    """A kernel was called while MLX traces a function: the function has to run untraced.

    It is not an ``Exception``, so that a release's ``except`` does not catch it.
    """


class Kernel:
    """A kernel that is compiled for each signature and runs immediately."""

    def __init__(
        self,
        name: str,
        input_names: Sequence[str],
        output_names: Sequence[str],
        source: str,
        header: str = "",
        ensure_row_contiguous: bool = True,
        atomic_outputs: bool = False,
        compile_options: Any = None,
    ):
        if not output_names:
            raise ValueError("[metal_kernel] Must specify at least one output.")
        names = (tuple(input_names), tuple(output_names))
        self.source = Source(name, *names, source, header, atomic_outputs)
        self.contiguous = ensure_row_contiguous
        made = sys._getframe(1)
        self.site = f"{made.f_globals.get('__name__', '')}:{made.f_lineno}"

    def __call__(
        self,
        *,
        inputs: Sequence[Any],
        output_shapes: Sequence[Sequence[int]],
        output_dtypes: Sequence[Any],
        grid: Sequence[int],
        threadgroup: Sequence[int],
        template: Sequence[tuple[str, Any]] | None = None,
        init_value: float | None = None,
        verbose: bool = False,
        stream: Any = None,
    ) -> list[Any]:
        for name, got, want in (
            ("inputs", inputs, self.source.inputs),
            ("output_shapes", output_shapes, self.source.outputs),
            ("output_dtypes", output_dtypes, self.source.outputs),
        ):
            if len(got) != len(want):
                raise ValueError(
                    f"[metal_kernel] Expected `{name}` to have size {len(want)} but got size"
                    f" {len(got)}."
                )
        if (threads := math.prod(threadgroup)) > MOST_THREADS:
            raise ValueError(
                f"Thread group size ({threads}) is greater than  the maximum allowed threads per"
                f" threadgroup ({MOST_THREADS})"
            )
        arrays = [one if isinstance(one, mx.array) else mx.array(one) for one in inputs]
        try:
            mx.eval(arrays)
        except ValueError as error:
            raise InTrace(self.source.name) if "transformations" in str(error) else error from None
        kinds = tuple(Input(TYPES[one.dtype][0], one.ndim == 0) for one in arrays)
        outputs = list(zip(output_shapes, output_dtypes, strict=True))
        chosen = tuple(
            (name, one if isinstance(one, int) else TYPES[one][0]) for name, one in template or ()
        )
        run = build_function(
            self.source, kinds, tuple(TYPES[kind][0] for kind in output_dtypes), chosen
        )
        if isinstance(run, NotRun):
            JOURNAL.not_run[str(run)] = None
            raise run
        JOURNAL.launched[self.site] = JOURNAL.launched.get(self.site, 0) + 1
        return self._run(run, arrays, outputs, grid, threadgroup, init_value)

    def _run(
        self,
        run: Any,
        arrays: Sequence[Any],
        outputs: Sequence[tuple[Sequence[int], Any]],
        grid: Sequence[int],
        threadgroup: Sequence[int],
        init_value: float | None,
    ) -> list[Any]:
        kept: list[Any] = []  # keeps arrays alive while the kernel has pointers to them
        pointers: list[int] = []
        guards: dict[str, Guarded] = {}
        try:
            for name, one in zip(self.source.inputs, arrays, strict=True):
                values = _values(one)
                if self.contiguous:
                    values = np.ascontiguousarray(values).reshape(one.shape)
                kept.append(values)
                pointers.append(values.ctypes.data)
                if values.flags.c_contiguous:
                    guards[name] = guard = Guarded(values.nbytes)
                    ctypes.memmove(guard.at, values.ctypes.data, values.nbytes)
                    pointers[-1] = guard.at
                strides = [stride // values.itemsize for stride in values.strides]
                facts = {"shape": one.shape, "strides": strides, "ndim": [one.ndim]}
                for what in self.source.beside(name) if one.ndim else ():
                    kind = np.int64 if BESIDE[what][0] == "int64_t" else np.int32
                    kept.append(np.array(facts[what], kind))
                    pointers.append(kept[-1].ctypes.data)
            for name, (shape, dtype) in zip(self.source.outputs, outputs, strict=True):
                kind = np.dtype(TYPES[dtype][1])
                guards[name] = guard = Guarded(math.prod(shape) * kind.itemsize)
                pointers.append(guard.at)
                if init_value is None:
                    # NaN in every float type, so that unwritten elements show.
                    ctypes.memset(guard.at, 0xFF, guard.size)
                elif guard.size:
                    guard.array(kind)[:] = _values(mx.array(init_value).astype(dtype))
            self._dispatch(run, pointers, guards, grid, threadgroup)
            return [
                self._output(guards[name], shape, dtype, init_value)
                for name, (shape, dtype) in zip(self.source.outputs, outputs, strict=True)
            ]
        finally:
            for guard in guards.values():
                guard.free()

    def _dispatch(
        self,
        run: Any,
        pointers: Sequence[int],
        guards: dict[str, Guarded],
        grid: Sequence[int],
        threadgroup: Sequence[int],
    ) -> None:
        if 0 in grid:
            return
        report, at = (ctypes.c_long * len(_REPORT))(), ctypes.c_void_p()
        table = (ctypes.c_void_p * len(pointers))(*pointers)
        sizes = [(ctypes.c_int * 3)(*map(int, one)) for one in (grid, threadgroup)]
        with _LOCK:
            failed = run(*sizes, table, report, ctypes.byref(at))
        name = self.source.name
        for count, meaning in zip(report, _REPORT, strict=True):
            if count and meaning:
                JOURNAL.faults[f"kernel {name}: {meaning}"] = None
        if failed:
            near = [one for one, guard in guards.items() if guard.holds(at.value or 0)]
            fault = f"kernel {name} reads or writes outside {near[0] if near else 'its buffers'}"
            JOURNAL.faults[fault] = None
            raise Fault(fault)

    def _output(
        self, guard: Guarded, shape: Sequence[int], dtype: Any, init_value: float | None
    ) -> Any:
        kind = np.dtype(TYPES[dtype][1])
        if not guard.size:
            return mx.zeros(shape, dtype)
        values = guard.array(kind).copy()
        if init_value is None and kind.itemsize > 1:
            left = int((values.view(np.uint8).reshape(-1, kind.itemsize) == 0xFF).all(1).sum())
            if left:
                fault = f"kernel {self.source.name} leaves {left} of {values.size} values unwritten"
                JOURNAL.unwritten[fault] = None
        made = mx.array(values.reshape(shape))
        return made.view(mx.bfloat16) if dtype == mx.bfloat16 else made


@functools.cache
def build_function(source: Source, *signature: Any) -> Any:
    try:
        return library.load(source.text(*signature), source.name)
    except NotRun as reason:
        return reason


def _values(array: Any) -> Any:
    """Convert an array to numpy; bfloat16, which numpy lacks, as its bits."""
    return np.asarray(array.view(mx.uint16) if array.dtype == mx.bfloat16 else array)
