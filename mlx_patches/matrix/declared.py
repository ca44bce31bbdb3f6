"""Declared (not measured) rules: those of patches that other packages contribute."""

import re
from collections.abc import Mapping

from packaging.specifiers import SpecifierSet

from ..core.patch import Patch
from .matrix import Rule
from .ranges import find_in_both


def build_rules(
    patch: Patch, affected: Mapping[str, str], fixed: Mapping[str, str], note: str = ""
) -> dict[str, Rule]:
    """Build the rules of a contributed patch from the ranges that its package declares.

    Raises:
        ValueError: the id or the summary cannot be shown, a range is not a version specifier, is
            empty, overlaps the other one, or ``fixed`` or the targets name a distribution that
            ``affected`` does not name.
    """
    if not re.fullmatch(r"'[a-z0-9][a-z0-9._-]*'", repr(patch.id)):
        raise ValueError(f"the id is {patch.id!r}; use a to z, digits and hyphens")
    if not str(patch.summary).isprintable():
        raise ValueError(f"{patch.id}: the summary is {patch.summary!r}; use one printable line")
    if strange := {one.distribution for one in patch.targets} - affected.keys():
        raise ValueError(f"{patch.id}: affected has no range for {min(strange)}, which it changes")
    if strange := fixed.keys() - affected.keys():
        raise ValueError(f"{patch.id}: {min(strange)} is fixed and was never affected")
    rules = {}
    for distribution, specifier in affected.items():
        if not str(SpecifierSet(specifier)):
            raise ValueError(f"{patch.id}: an empty range would match every {distribution}")
        rule = Rule(specifier, fixed.get(distribution, ""), note=note, declared=True)
        point = find_in_both(rule.affected, rule.fixed) if rule.fixed else None
        if point is not None:
            raise ValueError(f"{patch.id}: {distribution} {point} is both affected and fixed")
        rules[distribution] = rule
    return rules
