"""One broken version of each patch. With it in place, the patch's probe must be red."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mlx_patches._patch import Attribute
from mlx_patches.patches.shared import _handles, frozen_state

Mutant = Callable[[pytest.MonkeyPatch], None]


def handles_that_alias(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_handles, "Attribute", lambda name, read: Attribute(name))


def states_that_are_live(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frozen_state, "detached", lambda value: value)


MUTANTS: dict[str, Mutant] = {
    "offset-alias": handles_that_alias,
    "left-padding-alias": handles_that_alias,
    "frozen-state": states_that_are_live,
}
