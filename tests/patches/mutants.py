"""Broken versions of patches: with one in place, the patch's probe must be red."""

from __future__ import annotations

from collections.abc import Callable

import pytest


def replaced(owner: object, /, **values: object) -> Callable[[pytest.MonkeyPatch], None]:
    """A mutant that puts these values in place of what a module or a class has."""

    def mutate(monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in values.items():
            monkeypatch.setattr(owner, name, value)

    return mutate


def recoded(owner: object, /, **functions: Callable[..., object]) -> Callable[..., None]:
    """A mutant that gives functions of a module other code, also where targets hold them."""

    def mutate(monkeypatch: pytest.MonkeyPatch) -> None:
        for name, function in functions.items():
            monkeypatch.setattr(getattr(owner, name), "__code__", function.__code__)

    return mutate
