"""The severity of each patch's defect: what it does to a user without the patch."""

from __future__ import annotations

from collections.abc import Iterable

from ..activation.session import session
from ..evidence.words import SEVERITIES, WRONG_TEXT


def patch_severity(patch_id: str) -> str:
    """The severity of a patch's defect; the worst for a patch that names none of our words."""
    registry = session().registry
    named = registry.declared(patch_id).severity if patch_id in registry else WRONG_TEXT
    return named if named in SEVERITIES else WRONG_TEXT


def worst_first(ids: Iterable[str]) -> list[str]:
    """Patches sorted by severity, the worst first; the order within one severity is kept."""
    return sorted(ids, key=lambda id_: SEVERITIES.index(patch_severity(id_)))
