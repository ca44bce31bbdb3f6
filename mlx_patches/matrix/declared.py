"""Declared (not measured) rules: those of patches that other packages contribute."""

from collections.abc import Mapping

from packaging.specifiers import SpecifierSet

from .matrix import Rule
from .ranges import find_in_both


def build_rules(
    patch: str, affected: Mapping[str, str], fixed: Mapping[str, str], note: str = ""
) -> dict[str, Rule]:
    """Build the rules of a contributed patch from the ranges that its package declares.

    Raises:
        ValueError: a range is not a version specifier, is empty, overlaps the other one, or
            ``fixed`` names a distribution that ``affected`` does not name.
    """
    if strange := fixed.keys() - affected.keys():
        raise ValueError(f"{patch}: {min(strange)} is fixed and was never affected")
    rules = {}
    for distribution, specifier in affected.items():
        if not str(SpecifierSet(specifier)):
            raise ValueError(f"{patch}: an empty range would match every {distribution}")
        rule = Rule(specifier, fixed.get(distribution, ""), note=note, declared=True)
        point = find_in_both(rule.affected, rule.fixed) if rule.fixed else None
        if point is not None:
            raise ValueError(f"{patch}: {distribution} {point} is both affected and fixed")
        rules[distribution] = rule
    return rules
