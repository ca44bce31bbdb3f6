"""Which patches a family needs: ``python tools/attribute.py FAMILY --scenario NAME``.

No named scenario is red with every patch applied. A scenario needs a patch if removing that patch
turns it red. If several patches repair a defect, removing one of them does not; so the scenario is
run with only the found patches, and the first others that turn it green are added.
``--beside-entry`` keeps the patches that ``apply()`` requests for the model and finds the
ones missing from them. Prints a JSON object, scenario to ids.
"""

import argparse
import contextlib
import json
import sys
from collections.abc import Collection, Sequence
from typing import NamedTuple

from mlx_patches.core.errors import MlxPatchesError
from mlx_patches.evidence.words import DTYPES, FLOAT32, METAL_EMULATED, RED
from mlx_patches.lab import Family, LabModel
from mlx_patches.lab.child import build_family, emulate, every_patch


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="tools/attribute.py")
    parser.add_argument("family", help="DISTRIBUTION:NAME")
    parser.add_argument("--scenario", action="append", required=True)
    parser.add_argument("--dtype", choices=DTYPES, default=FLOAT32)
    parser.add_argument("--device", choices=(METAL_EMULATED,), help="run Metal's branch on a CPU")
    parser.add_argument("--likely", action="append", default=[], help="a patch to try first")
    parser.add_argument("--beside-entry", action="store_true", help="what its entry lacks")
    options = parser.parse_args(argv)
    with contextlib.redirect_stdout(sys.stderr):
        emulate(options.device)
        family = Family(*options.family.split(":", 1))
        kept = list_requested(family) if options.beside_entry else frozenset()
        found = attribute(family, options.scenario, options.dtype, options.likely, kept)
    print(json.dumps(found))


def attribute(
    family: Family,
    scenarios: list[str],
    dtype: str = FLOAT32,
    expected: Sequence[str] = (),
    kept: Collection[str] = (),
) -> dict[str, list[str]]:
    """Map each scenario to the patches it needs, besides ``kept``; tries ``expected`` first."""
    import mlx_patches
    from mlx_patches.lab.scenarios import SCENARIOS

    mlx_patches.apply(patches=every_patch())
    model = build_family(family, dtype=dtype)[0]
    for name in scenarios:
        # A scenario may import release modules, and only then are their patches in effect.
        SCENARIOS[name](model)
    everything = in_effect()
    tried = Tried(model, frozenset(everything))
    applied = [one for one in dict.fromkeys(patch for patch, _ in everything) if one not in kept]
    found: dict[str, list[str]] = {}
    for name in scenarios:
        known = [one for one in expected if one in applied]
        likely = list(dict.fromkeys([*known, *(one for ids in found.values() for one in ids)]))
        found[name] = find_needed(tried, name, applied, likely)
    apply_all_but((), tried.everything)
    return found


class Tried(NamedTuple):
    """The model under test, and the (patch, target) pairs in effect with every patch applied."""

    model: LabModel
    everything: frozenset[tuple[str, str]]


def find_needed(
    tried: Tried, scenario: str, applied: list[str], likely: Sequence[str] = ()
) -> list[str]:
    """The applied patches that a scenario needs; ``likely`` ones are tried first."""
    others = [one for one in applied if one not in likely]
    suspects = list(likely) if likely and not_red(tried, scenario, without=others) else applied
    missed = missing(tried, scenario, suspects)
    return [*missed, *find_enough(tried, scenario, [*likely, *others], missed)]


def find_enough(tried: Tried, scenario: str, applied: list[str], found: list[str]) -> list[str]:
    """The first patches that, added to the found ones, keep a scenario from being red.

    Each trial drops a part of the others: first a half, at last a single one.
    """
    if not_red(tried, scenario, without=[one for one in applied if one not in found]):
        return []
    kept = [one for one in applied if one not in found]
    size = len(kept)
    while size > 1:
        size = (size + 1) // 2
        for start in reversed(range(0, len(kept), size)):
            left = [*kept[:start], *kept[start + size :]]
            without = [one for one in applied if one not in (*found, *left)]
            if not_red(tried, scenario, without):
                kept = left
    return kept


def missing(tried: Tried, scenario: str, suspects: list[str]) -> list[str]:
    """The patches whose individual removal turns the scenario red, found by bisection."""
    if not suspects or not_red(tried, scenario, without=suspects):
        return []
    if len(suspects) == 1:
        return suspects
    half = len(suspects) // 2
    return [*missing(tried, scenario, suspects[:half]), *missing(tried, scenario, suspects[half:])]


def not_red(tried: Tried, scenario: str, without: Sequence[str]) -> bool:
    """Whether the scenario is not red without these patches, which stay unapplied.

    It may be green or not applicable: a patch may refuse an unsupported case.
    """
    from mlx_patches.lab.scenarios import SCENARIOS, forget_solo_runs

    apply_all_but(without, tried.everything)
    forget_solo_runs()
    return SCENARIOS[scenario](tried.model).verdict != RED


def apply_all_but(without: Sequence[str], everything: Collection[tuple[str, str]]) -> None:
    """Restore everything, then apply all other patches: earlier trials must leave no trace.

    ``everything`` has the (patch, target) pairs in effect with every patch. If others are in effect
    now, later trials would attribute the effect of one patch to others.
    """
    import mlx_patches

    mlx_patches.restore()
    mlx_patches.apply(patches=[one for one in every_patch() if one not in without])
    found = set(in_effect())
    wanted = {target for target in everything if target[0] not in without}
    stuck = {target for target in found if target[0] in without}
    for targets, problem in ((stuck, "still in effect"), (wanted - found, "no longer in effect")):
        if targets:
            names = ", ".join(f"{patch} at {target}" for patch, target in sorted(targets))
            raise MlxPatchesError(f"{problem} after restore() and apply(): {names}")


def in_effect() -> list[tuple[str, str]]:
    """The (patch, target) pairs in effect in this process, in the order of ``status()``."""
    import mlx_patches

    return [(o.patch, o.target) for o in mlx_patches.status() if o.status == "applied"]


def list_requested(family: Family) -> frozenset[str]:
    from mlx_patches.activation.session import session

    current = session()
    entry = current.gate.patches_for(family.name, family.distribution)
    return frozenset((*current.matrix.always, *entry))


if __name__ == "__main__":
    main()
