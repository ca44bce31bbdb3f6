"""A kernel as C++: the function that MLX writes around its source, and an entry point.

The signature follows MLX's ``backend/common/metal_kernel.cpp``: each input with its shape, strides
and number of dimensions if the source names them, then the outputs, then the attributes that the
source names.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

# An attribute's name, its type, and its value in shim.h.
ATTRIBUTES = {
    "dispatch_quadgroups_per_threadgroup": ("uint", "(emu::count + 3) / 4"),
    "dispatch_simdgroups_per_threadgroup": ("uint", "emu::groups_in_group()"),
    "dispatch_threads_per_threadgroup": ("uint3", "emu::g_tg_size"),
    "grid_origin": ("uint3", "uint3(0u)"),
    "grid_size": ("uint3", "emu::g_grid"),
    "quadgroup_index_in_threadgroup": ("uint", "EMU_THREAD.index / 4"),
    "quadgroups_per_threadgroup": ("uint", "(emu::count + 3) / 4"),
    "simdgroup_index_in_threadgroup": ("uint", "EMU_THREAD.index / 32"),
    "simdgroups_per_threadgroup": ("uint", "emu::groups_in_group()"),
    "thread_execution_width": ("uint", "32u"),
    "thread_index_in_quadgroup": ("uint", "EMU_THREAD.index % 4"),
    "thread_index_in_simdgroup": ("uint", "EMU_THREAD.index % 32"),
    "thread_index_in_threadgroup": ("uint", "EMU_THREAD.index"),
    "thread_position_in_grid": ("uint3", "EMU_THREAD.in_grid"),
    "thread_position_in_threadgroup": ("uint3", "EMU_THREAD.in_group"),
    "threadgroup_position_in_grid": ("uint3", "emu::g_tg_position"),
    "threadgroups_per_grid": ("uint3", "emu::g_tg_count"),
    "threads_per_grid": ("uint3", "emu::g_grid"),
    "threads_per_simdgroup": ("uint", "32u"),
    "threads_per_threadgroup": ("uint3", "emu::g_tg_size"),
}
# What MLX passes with an input if the source names it: its type, and ``*`` or ``&``.
BESIDE = {"shape": ("int", "*"), "strides": ("int64_t", "*"), "ndim": ("int", "&")}
_SPACES = ("device", "constant", "thread", "threadgroup", "kernel")
# Without these, no thread of a kernel waits for another.
_WAITS = re.compile(r"\bsimd_|_barrier\b|\bquad_|\bsimdgroup_m")
# A threadgroup variable; threads share it, so it is static here.
_SHARED = re.compile(
    r"\bthreadgroup\s+((?:const\s+)?[\w:]+(?:\s*<[^<>;()]*>)?\s+\w+\s*(?:\[|;|,|=))"
)
_METAL_HEADER = re.compile(r"^\s*#\s*include\s*<metal_\w+>", re.MULTILINE)
_ANNOTATION = re.compile(r"\[\[[^\]]*\]\]")


class Input(NamedTuple):
    """An input in a signature: the type of its elements, and whether it is a scalar."""

    kind: str
    scalar: bool


@dataclass(frozen=True)
class Source:
    """The arguments of ``mx.fast.metal_kernel``."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    body: str
    header: str = ""
    atomic: bool = False

    def beside(self, name: str) -> list[str]:
        """Which of ``BESIDE`` an input comes with. Like MLX, this searches only the body."""
        return [what for what in BESIDE if f"{name}_{what}" in self.body]

    def text(
        self, inputs: Sequence[Input], outputs: Sequence[str], template: Sequence[tuple[str, Any]]
    ) -> str:
        """Write the C++ of one instance; a type in ``template`` is a string."""
        parameters: list[str] = []
        values: list[str] = []

        def add(kind: str, ref: str, name: str) -> None:
            parameters.append(f"{kind}{ref} {name}")
            values.append(f"{'*' * (ref == '&')}({kind}*)p[{len(values)}]")

        for name, one in zip(self.inputs, inputs, strict=True):
            add(f"const {one.kind}", "&" if one.scalar else "*", name)
            for what in () if one.scalar else self.beside(name):
                kind, ref = BESIDE[what]
                add(f"const {kind}", ref, f"{name}_{what}")
        for name, kind in zip(self.outputs, outputs, strict=True):
            add(f"atomic<{kind}>" if self.atomic else kind, "*", name)
        for name, (kind, value) in ATTRIBUTES.items():
            if name in self.body:
                parameters.append(f"{kind} {name}")
                values.append(value)
        kinds = ", ".join(f"{_kind(value)} {name}" for name, value in template)
        chosen = ", ".join(str(v).lower() if isinstance(v, bool) else str(v) for _, v in template)
        waits = "true" if _WAITS.search(self.body + self.header) else "false"
        return "\n".join(
            [
                '#include "shim.h"',
                *(f"#define {word}" for word in _SPACES),
                _spell(self.header),
                f"template <{kinds}>" if template else "",
                f"static void emulated_kernel({', '.join(parameters)}) {{",
                _spell(self.body),
                "}",
                *(f"#undef {word}" for word in _SPACES),
                "static void body(void* a) {",
                "  void** p = (void**)a;",
                f"  emulated_kernel{f'<{chosen}>' if template else ''}({', '.join(values)});",
                "}",
                'extern "C" __attribute__((visibility("default")))',
                "int emulated(const int* grid, const int* group, void** p, long* n, void** at) {",
                f"  return emu::dispatch(grid, group, {waits}, body, p, n, at);",
                "}",
            ]
        )


def _spell(text: str) -> str:
    text = _METAL_HEADER.sub("", text)
    return _ANNOTATION.sub("", _SHARED.sub(r"static \1", text))


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    return "int" if isinstance(value, int) else "typename"
