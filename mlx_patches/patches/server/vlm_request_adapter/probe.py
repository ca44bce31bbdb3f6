"""Loads a model with an adapter for one request, and without one for the next."""

from types import SimpleNamespace
from typing import Any, ClassVar

from ....probes.kit import NotApplicable, Result, Target, module_of, require_own


class Generator:
    """The generator of a model that needs no memory; it keeps the adapters that were loaded."""

    loaded: ClassVar[list[Any]] = []

    def __init__(self, model_path: str, adapter_path: Any, **options: Any):
        self.loaded.append(adapter_path)

    def wait_until_ready(self) -> tuple[Any, ...]:
        config = SimpleNamespace(model_type="llama", text_config=None)
        return SimpleNamespace(config=config), None, config

    def stop_and_join(self) -> None:
        pass


def probe(target: Target) -> Result:
    """Red if the second request, or one after the server's start, gets another's adapter."""
    require_own(target)
    server = module_of(target)
    if not hasattr(server, "_INHERIT_ADAPTER"):
        raise NotApplicable("a request without an adapter gets none in this release")
    released, server.ResponseGenerator = server.ResponseGenerator, Generator
    Generator.loaded.clear()
    try:
        start(server)
        for adapter in ({}, {"adapter_path": "theirs"}, {}, {"adapter_path": None}, {}):
            server.get_cached_model("model", **adapter)
    finally:
        server.ResponseGenerator = released
        server.unload_model_sync()
    want = ["own", "theirs", "own", None, "own"]
    return Result(Generator.loaded != want, f"adapters {Generator.loaded}, not {want}")


def start(server: Any) -> None:
    """Load the server's model as its start does, in a function of this name."""
    names = {"__name__": server.__name__, "load": server.get_cached_model}
    exec('def lifespan(): load("model", "own")', names)
    names["lifespan"]()
