"""Runs a whole tiny model with its vision tower on chunked prompts, with and without images."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from ....probes.images import probe_chunks
from ....probes.kit import BATCH_PATCHES, Result, Target, require_module, require_own

# The layers' method that adds features to the image tokens of a mask.
_ADDS = "_deepstack_process"


def probe(target: Target) -> Result:
    """Red if a row of the release's engine differs from a solo run in one call."""
    require_own(target)
    in_model = target.module.startswith("mlx_vlm.models.")
    family = target.module.split(".")[2] if in_model else "qwen3_vl"
    with check_bounds(family):
        return probe_chunks([family], (*BATCH_PATCHES, "rope-deltas", "omni-positions"))


@contextlib.contextmanager
def check_bounds(family: str) -> Iterator[None]:
    """In this context, check that features are added only to tokens that exist.

    MLX does not check bounds, and would write past the end of its array.
    """
    module = require_module(f"mlx_vlm.models.{family}.language")
    kinds = [kind for kind in vars(module).values() if _ADDS in getattr(kind, "__dict__", ())]
    with contextlib.ExitStack() as stack:
        for kind in kinds:
            own: Any = getattr(kind, _ADDS)
            stack.enter_context(mock.patch.object(kind, _ADDS, check_mask(own)))
        yield


def check_mask(add: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the method to refuse features (image tokens, width) with a mask of too many tokens."""

    def add_checked(layers: Any, hidden: Any, mask: Any, features: Any) -> Any:
        if features.ndim == 2 and mask.shape[1] > hidden.shape[1]:
            raise IndexError(f"a mask of {mask.shape[1]} tokens for {hidden.shape[1]}")
        return add(layers, hidden, mask, features)

    return add_checked
