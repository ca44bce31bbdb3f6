"""Faults that tests plant in a release, to see that a scenario or a walk finds them."""

import functools
import importlib
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_map


def off(values: Any) -> Any:
    return tree_map(lambda one: one * 1.125 if isinstance(one, mx.array) else one, values)


def plant(monkeypatch: pytest.MonkeyPatch, place: str, around: Callable[..., Any]) -> None:
    """Put ``around(original, ...)`` in place of ``module:Class.method``, or of a function."""
    module, path = place.split(":")
    holder: Any = importlib.import_module(module)
    *parts, name = path.split(".")
    for part in parts:
        holder = getattr(holder, part)
    bound = getattr(holder, name)
    is_class_method = getattr(bound, "__self__", None) is holder
    original = bound.__func__ if is_class_method else bound

    @functools.wraps(original)
    def inside(*args: Any, **kwargs: Any) -> Any:
        return around(original, *args, **kwargs)

    monkeypatch.setattr(holder, name, classmethod(inside) if is_class_method else inside)
