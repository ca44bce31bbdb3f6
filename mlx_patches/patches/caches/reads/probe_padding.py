"""Reads ``left_padding`` or ``lengths``, updates the cache, and checks the value that was read."""

from ....probes.kit import Result, Target, mx, own_class_of, require_names
from . import probe_offset


def probe(target: Target) -> Result:
    """Red if an update of the cache changes an array that was read before."""
    name, _, attribute = target.name.partition(".")
    if name != "ArraysCache":
        return probe_offset.probe(target)
    cache = own_class_of(target)(2)
    require_names(cache, attribute, "advance")
    setattr(cache, attribute, mx.array([3, 5]))
    captured = getattr(cache, attribute)
    cache.advance(2)
    if captured.tolist() != [3, 5]:
        return Result(True, f"advance changes the {attribute} read before it")
    return Result(False, f"a captured {attribute} does not change")
