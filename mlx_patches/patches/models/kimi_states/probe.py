"""Feeds a tiny model one token, and checks the states of its linear layers."""

from ....probes.kit import Result, Target, tiny_of


def probe(target: Target) -> Result:
    """Red if a state is not an array."""
    model = tiny_of(target)
    cache = model.make_cache()
    model.call([[1]], cache)
    states = [state for layer in cache for state in getattr(layer, "cache", ())]
    odd = {type(state).__name__ for state in states if not hasattr(state, "shape")}
    return Result(bool(odd), f"{len(states)} states, not arrays: {', '.join(odd) or 'none'}")
