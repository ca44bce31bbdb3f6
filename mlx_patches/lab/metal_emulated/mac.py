"""Makes MLX report a Mac while it computes on a CPU."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx

from .kernel import InTrace, Kernel

INFO = {
    "architecture": "applegpu_g14s",
    "device_name": "Apple M2 Max (emulated)",
    "memory_size": 32 << 30,
    "max_recommended_working_set_size": 24 << 30,
    "max_buffer_length": 16 << 30,
    "resource_limit": 499000,
}


class Device(mx.Device):  # type: ignore[misc]
    """MLX's device, reporting that it is the GPU."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) or bool(other == mx.gpu)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = mx.Device.__hash__

    @property
    def type(self) -> Any:
        return mx.gpu


def install() -> None:
    if not is_installed():
        for owner, name, answer in _answers():
            setattr(owner, name, answer)


@contextmanager
def emulate_metal() -> Iterator[None]:
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in _answers()]
    install()
    try:
        yield
    finally:
        for owner, name, own in before:
            setattr(owner, name, own)


def _answers() -> Iterator[tuple[Any, str, Any]]:
    """The replacement of each attribute of MLX."""
    default_device = mx.default_device
    yield mx.fast, "metal_kernel", Kernel
    yield mx, "compile", compile_or_run(mx.compile)
    yield mx.metal, "is_available", lambda: True
    yield mx, "default_device", lambda: Device(default_device().type, 0)
    limits = ("set_wired_limit", "set_memory_limit", "set_cache_limit")  # which a CPU lacks
    answers: dict[str, Any] = {name: lambda *args, **kwargs: 0 for name in limits}
    answers["device_info"] = lambda *args, **kwargs: dict(INFO)
    for owner in (mx, mx.metal):
        for name in answers.keys() & set(dir(owner)):
            yield owner, name, answers[name]
    # On a CPU, MLX supports only float32 here.
    yield mx, "gather_mm", widen(mx.gather_mm)


def is_installed() -> bool:
    return mx.fast.metal_kernel is Kernel


def compile_or_run(compile: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``mx.compile``: functions that call a kernel, which cannot be traced, run untraced."""

    @functools.wraps(compile)
    def compile_function(fun: Any = None, *args: Any, **kwargs: Any) -> Any:
        if fun is None:
            return lambda fun: compile_function(fun, *args, **kwargs)
        fast, traced = compile(fun, *args, **kwargs), True

        @functools.wraps(fun, updated=())
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal traced
            if traced:
                try:
                    return fast(*args, **kwargs)
                except InTrace:
                    traced = False
            return fun(*args, **kwargs)

        return call

    return compile_function


def widen(operation: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap an operation to compute small floats in float32 and round the result."""

    @functools.wraps(operation)
    def wide(a: Any, b: Any, *args: Any, **kwargs: Any) -> Any:
        kind = a.dtype
        if kind in (mx.bfloat16, mx.float16):
            a, b = a.astype(mx.float32), b.astype(mx.float32)
        return operation(a, b, *args, **kwargs).astype(kind)

    return wide
