"""Loads a model with an adapter for one request, and without one for the next."""

from typing import Any

from ....probes.kit import Result, Target, require_names, require_own
from ....probes.vlm_server import Loaded, loading


def probe(target: Target) -> Result:
    """Red if the second request, or one after the server's start, gets another's adapter."""
    require_own(target)
    with loading() as server:
        require_names(server, "_INHERIT_ADAPTER")
        start(server)
        for adapter in ({}, {"adapter_path": "theirs"}, {}, {"adapter_path": None}, {}):
            server.get_cached_model("model", **adapter)
    want = ["own", "theirs", "own", None, "own"]
    return Result(Loaded.adapters != want, f"adapters {Loaded.adapters}, not {want}")


def start(server: Any) -> None:
    """Load the server's model as its start does, in a function of this name."""
    names = {"__name__": server.__name__, "load": server.get_cached_model}
    exec('def lifespan(): load("model", "own")', names)
    names["lifespan"]()
