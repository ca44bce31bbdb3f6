"""Which patches a family needs: ``python -m mlx_patches.lab.attribute FAMILY --scenario NAME``.

With every patch in place these scenarios are green. A patch is needed where one of them is red
without it. Where none is missed by itself, two do the same, and the first that is enough alone
is the one. Prints a JSON object, scenario to ids.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Sequence

from . import Family, LabModel
from .child import built, every_patch


def main(argv: list[str] | None = None) -> None:
    """Attribute each scenario that was named."""
    parser = argparse.ArgumentParser(prog="python -m mlx_patches.lab.attribute")
    parser.add_argument("family", help="DISTRIBUTION:NAME")
    parser.add_argument("--scenario", action="append", required=True)
    options = parser.parse_args(argv)
    with contextlib.redirect_stdout(sys.stderr):
        found = attribute(Family(*options.family.split(":", 1)), options.scenario)
    print(json.dumps(found))


def attribute(family: Family, scenarios: list[str]) -> dict[str, list[str]]:
    """Scenario to the patches that it needs; leaves every patch applied."""
    import mlx_patches

    mlx_patches.apply(patches=every_patch())
    model, _ = built(family)
    applied = list(dict.fromkeys(o.patch for o in mlx_patches.status() if o.status == "applied"))
    found: dict[str, list[str]] = {}
    for name in scenarios:
        likely = list(dict.fromkeys(one for ids in found.values() for one in ids))
        found[name] = needed(model, name, applied, likely)
    return found


def needed(
    model: LabModel, scenario: str, applied: list[str], likely: Sequence[str] = ()
) -> list[str]:
    """Those of the applied patches that one scenario of a model needs.

    ``likely``: what other scenarios of the model need, which is tried first.
    """
    others = [one for one in applied if one not in likely]
    suspects = list(likely) if likely and green(model, scenario, without=others) else applied
    missed = missing(model, scenario, suspects)
    if missed:
        return missed
    for one in suspects:
        if green(model, scenario, without=[other for other in applied if other != one]):
            return [one]
    return []


def missing(model: LabModel, scenario: str, suspects: list[str]) -> list[str]:
    """Those without each of which the scenario is red: by halves, most matter to few scenarios."""
    if not suspects or green(model, scenario, without=suspects):
        return []
    if len(suspects) == 1:
        return suspects
    half = len(suspects) // 2
    return [
        *missing(model, scenario, suspects[:half]),
        *missing(model, scenario, suspects[half:]),
    ]


def green(model: LabModel, scenario: str, without: list[str]) -> bool:
    """Whether the scenario is green without these patches."""
    import mlx_patches

    from .scenarios import SCENARIOS, forget_solo_runs

    mlx_patches.restore(without)
    forget_solo_runs()
    try:
        return SCENARIOS[scenario](model).verdict == "green"
    finally:
        mlx_patches.apply(patches=without)


if __name__ == "__main__":
    main()
