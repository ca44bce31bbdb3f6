"""A target's ``when`` says no only where its layer returns what the original returns.

The lab's scenarios run with checks that skip nothing. In each call that the checks would have
skipped, the layers must call the original once, with the call's arguments, and return its result.
"""

from __future__ import annotations

import functools
import sys
from collections import Counter
from typing import Any

import pytest

from mlx_patches.core import guard
from mlx_patches.core.manager import Manager
from mlx_patches.core.patch import Target, around
from mlx_patches.core.site import Aliases, Layer, Site
from mlx_patches.lab import Family
from mlx_patches.lab.scenarios import SCENARIOS
from mlx_patches.matrix.gate import Gate
from mlx_patches.matrix.matrix import CompatMatrix
from mlx_patches.patches import catalogue

from .conftest import installed
from .models import build_or_skip

pytestmark = pytest.mark.slow

FAMILIES = {
    "mlx-lm": ("llama", "nemotron_h"),
    "mlx-vlm": ("gemma4", "qwen3_5"),
}


class Skips:
    """Runs a chain's layers in every call, and notes what they do where no check asks for them."""

    def __init__(self) -> None:
        self.skipped: dict[str, int] = {}
        self.wrong: list[str] = []

    def watch(self, site: Site) -> None:
        for chain in site._chains:
            if chain is not None and chain.composition.checks:
                composition = chain.composition
                body = functools.partial(self.run, site.path, chain, composition)
                chain.composition = guard.Composition(
                    body, composition.steps, composition.without, composition.answers_none
                )

    def run(self, path: str, chain: Any, composition: Any, *args: Any, **kwargs: Any) -> Any:
        needed = any(check(*args, **kwargs) for _, check in composition.checks)
        result = composition.body(*args, **kwargs)
        if not needed:
            self.skipped[path] = self.skipped.get(path, 0) + 1
            entries = chain._calls.entries
            if not guard._returned_once(entries, args, kwargs) or result is not entries[0][2]:
                self.wrong.append(path)
        return result


@pytest.mark.parametrize(
    "family",
    [Family(name, family) for name in FAMILIES if installed(name) for family in FAMILIES[name]],
    ids=str,
)
def test_a_skipped_call_is_one_that_the_layers_pass_on(family: Family) -> None:
    model = build_or_skip(family)
    manager, skips = Manager(Gate(CompatMatrix.builtin())), Skips()
    try:
        for patch in catalogue.builtin():
            manager.apply(patch)
        for site in manager.sites():
            skips.watch(site)
        found = {name: scenario(model).verdict for name, scenario in SCENARIOS.items()}
    finally:
        manager.restore()
    assert found["left-padded"] in ("green", "n/a"), found
    assert not Counter(skips.wrong)
    assert sum(skips.skipped.values()) > 100, skips.skipped


def test_a_check_that_says_no_too_often_is_found() -> None:
    skips = Skips()
    double = Target("mlx-lm", "m", "f", around(lambda original, x: 2 * original(x)))
    site = Site("m:f", sys.modules[__name__], lambda x: x, guard.Policy(print), Aliases())
    site.install(site.compose([Layer("p", double._replace(when=lambda x: x > 9), 0, "")]))
    skips.watch(site)
    assert site.live(10) == 20
    assert not skips.wrong
    assert site.live(9) == 18
    assert skips.wrong == ["m:f"]
