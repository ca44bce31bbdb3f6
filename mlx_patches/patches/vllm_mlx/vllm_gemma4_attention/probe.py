"""Lets vllm-mlx patch Gemma 4 for batches, and compares a tiny model's batch with its rows."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator

from ....core.patch import Target
from ....probes import NotApplicable, Result
from ....probes.fixtures import with_patches

# Patches that mlx-vlm's own attention needs in some releases.
_ROW = ("offset-alias", "shared-layer-offset")


def probe(target: Target) -> Result:
    """Red where a batch raises or differs after the host has patched the model."""
    from ....probes.batch_invariance import measure, tiny

    host = importlib.import_module(target.module)
    language = importlib.import_module("mlx_vlm.models.gemma4.language")
    with unchanged(language.Attention), with_patches(_ROW):
        if not getattr(host, target.name)():
            raise NotApplicable("the host does not patch the model")
        return measure(tiny("mlx-vlm", "gemma4"))


@contextlib.contextmanager
def unchanged(kind: type) -> Iterator[None]:
    """Restore a class's attributes after the block."""
    before = dict(vars(kind))
    try:
        yield
    finally:
        for name in set(vars(kind)) - set(before):
            delattr(kind, name)
        for name, value in before.items():
            if vars(kind)[name] is not value:
                setattr(kind, name, value)
