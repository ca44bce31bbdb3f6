"""Patches that a newcomer names, chosen by their properties: each may be deleted."""

from collections.abc import Callable, Collection

from mlx_patches.core.patch import Patch
from mlx_patches.evidence import store
from mlx_patches.matrix.matrix import CompatMatrix
from mlx_patches.patches import catalogue

REGISTRY, MATRIX = catalogue.builtin(), CompatMatrix.builtin()


def first(*releases: str, such: Callable[[Patch], object] = bool) -> str:
    """The first patch of those that are on by default that all of these releases need."""

    def is_needed(patch: Patch, name: str, version: str) -> bool:
        rule = MATRIX.rule(patch.id, name)
        return rule is not None and rule.decide(version) == "affected"

    for patch in REGISTRY:
        needed = all(is_needed(patch, *one.split()) for one in releases)
        if needed and not patch.optional and such(patch):
            return patch.id
    raise LookupError(f"{releases}: no patch is such a sample")


def modules(patch: Patch) -> Collection[str]:
    """The modules of mlx-lm in which a patch has targets."""
    return {t.module for t in patch.targets if t.distribution == "mlx-lm" and not t.supports}


def model_of(patch: Patch) -> str:
    """The only model of mlx-lm that a patch changes, or no text."""
    names = {name.removeprefix("mlx_lm.models.") for name in modules(patch)}
    return names.pop() if len(names) == 1 and names <= {*MATRIX.models} else ""


def list_needed(family: str, name: str = "mlx-lm", version: str = "0.32.2") -> list[str]:
    """The patches that repair a model's batches in a release, by the evidence."""
    cells = store.load_set(f"{name} {version}")["needs"][family].values()
    return sorted({id_ for ids in cells for id_ in ids})


# With few targets, so that its description is short.
SOME = first("mlx-lm 0.31.3", "mlx-vlm 0.4.3", such=lambda patch: len(patch.targets) < 9)
TYPO = SOME[0] + SOME[2:]
OF_A_MODEL = first("mlx-lm 0.32.2", such=model_of)
# One of several patches of a module: its text is not a docstring.
OF_A_PART = first(such=lambda patch: patch.doc)
