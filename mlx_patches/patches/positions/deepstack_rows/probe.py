"""Runs a whole tiny model, vision tower included, on prompts with and without images, in pieces."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from ....core.patch import Target
from ....probes import Result
from ....probes.fixtures import BATCH_PATCHES, imported, require_own
from ....probes.images import pieces_result

_FAMILY = "qwen3_vl"
# Patches for other defects of the same models.
_OTHERS = (*BATCH_PATCHES, "rope-deltas", "omni-positions")
# The layers' method that adds features to the image tokens of a mask.
_ADDS = "_deepstack_process"


def probe(target: Target) -> Result:
    """Red where a row of the release's engine differs from its prompt alone, read in one call."""
    require_own(target)
    in_model = target.module.startswith("mlx_vlm.models.")
    family = target.module.split(".")[2] if in_model else _FAMILY
    with inside(family):
        return pieces_result([family], _OTHERS)


@contextlib.contextmanager
def inside(family: str) -> Iterator[None]:
    """Check in the block that features are added to tokens that are there.

    MLX does not, and writes past the end of its array: the probe's process could die.
    """
    module = imported(f"mlx_vlm.models.{family}.language")
    kinds = [kind for kind in vars(module).values() if _ADDS in getattr(kind, "__dict__", ())]
    with contextlib.ExitStack() as stack:
        for kind in kinds:
            own: Any = getattr(kind, _ADDS)
            stack.enter_context(mock.patch.object(kind, _ADDS, checked(own)))
        yield


def checked(add: Callable[..., Any]) -> Callable[..., Any]:
    """The method, which refuses features (image tokens, width) by a mask of more tokens than
    there are."""

    def replacement(layers: Any, hidden: Any, mask: Any, features: Any) -> Any:
        if features.ndim == 2 and mask.shape[1] > hidden.shape[1]:
            raise IndexError(f"a mask of {mask.shape[1]} tokens for {hidden.shape[1]}")
        return add(layers, hidden, mask, features)

    return replacement
