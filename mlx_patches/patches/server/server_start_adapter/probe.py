"""Starts the server's model provider with an adapter, and records what it loads."""

from types import SimpleNamespace
from typing import Any

from ....probes.kit import Result, Target, module_of, require_names


def probe(target: Target) -> Result:
    """Red if the default model is loaded without the adapter of the command line."""
    kind: Any = getattr(module_of(target), "ModelProvider", None)
    require_names(kind, "_load")
    provider = make_provider(kind)
    provider.load("default_model", None, "default_model")
    (seen,) = provider.loaded
    wrong = seen[:2] != ("model", "adapter")
    return Result(wrong, f"the default model was loaded with the adapter {seen[1]!r}")


def make_provider(kind: Any, adapter: str | None = "adapter") -> Any:
    """A provider as after ``--model model --adapter-path``; ``loaded`` records what it loads."""

    class Provider(kind):  # type: ignore[misc]
        def _load(self, *key: Any) -> None:
            self.model_key = key
            self.loaded.append(key)

    provider: Any = Provider.__new__(Provider)
    provider.cli_args = SimpleNamespace(model="model", adapter_path=adapter, draft_model=None)
    provider.model_key = provider.model = provider.tokenizer = provider.draft_model = None
    provider.loaded = []
    provider._model_map = {"default_model": "model"}
    provider._adapter_map = {"default_model": adapter}
    provider._draft_model_map = {"default_model": None}
    return provider
