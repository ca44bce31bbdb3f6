"""Rules that are somebody's word: those of patches that other packages contribute."""

from __future__ import annotations

from collections.abc import Mapping

from packaging.specifiers import SpecifierSet

from .matrix import Rule
from .ranges import find_in_both


def declared_rules(
    patch: str, affected: Mapping[str, str], fixed: Mapping[str, str], note: str = ""
) -> dict[str, Rule]:
    """The rules that another package's word on its own patch makes.

    Raises:
        ValueError: a range is no version specifier, claims too much, or belongs to nothing.
    """
    if strange := fixed.keys() - affected.keys():
        raise ValueError(f"{patch}: {min(strange)} is fixed and was never affected")
    rules = {}
    for distribution, specifier in affected.items():
        if not str(SpecifierSet(specifier)):
            raise ValueError(f"{patch}: an empty range claims every {distribution}")
        rule = Rule(specifier, fixed.get(distribution, ""), note=note, declared=True)
        point = find_in_both(rule.affected, rule.fixed) if rule.fixed else None
        if point is not None:
            raise ValueError(f"{patch}: {distribution} {point} is both affected and fixed")
        rules[distribution] = rule
    return rules
