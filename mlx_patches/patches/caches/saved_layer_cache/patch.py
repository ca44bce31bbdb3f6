"""DeepSeek V4.1's prompt caches are saved, but cannot be loaded.

Why
    ``save_prompt_cache`` writes the name of each cache's class, and ``load_prompt_cache`` looks it
    up in mlx-lm's module of caches. The ``LayerCache`` of ``deepseek_v41`` is not there, and has no
    ``from_state``: every file raises KeyError. Its state lacks the size of its window.
How
    Such caches are saved as an ``ArraysCache`` of the same arrays, and the sizes of their windows
    are an entry of the caller's metadata. ``load_prompt_cache`` takes the entry out and makes the
    caches from it. A file without such caches is the release's own.
Upstream
    Not fixed in mlx-lm 0.32.2.
Retire when
    ``load_prompt_cache`` makes the caches that models define.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ....core.patch import Patch, Target, around
from ..._shared.prompt_files import load_entry, save_entry
from ..._shared.targets import LM_CACHES

# The entry of a file's metadata: the size of the window of each such cache, by its number.
SIZES = "_mlx_patches_layer_caches"
MODEL = "mlx_lm.models.deepseek_v41"
# What a state does not have under a name, or as an array.
REST = ("window_size", "offset")


def save_as_arrays(
    save: Callable[..., None], file_name: str, cache: Sequence[Any], metadata: Any = None
) -> None:
    """``save_prompt_cache``, with each of these caches as an ``ArraysCache``."""
    sizes = {number: one.window_size for number, one in enumerate(cache) if is_layer_cache(one)}
    if sizes:
        cache = [as_arrays(one) if is_layer_cache(one) else one for one in cache]
    save_entry(save, file_name, cache, metadata, SIZES, sizes)


def is_layer_cache(cache: Any) -> bool:
    """Whether a cache is a ``LayerCache`` of DeepSeek V4.1."""
    kind = type(cache)
    return (kind.__module__, kind.__name__) == (MODEL, "LayerCache")


def as_arrays(cache: Any) -> Any:
    """An ``ArraysCache`` of the arrays of a cache's state."""
    state = cache.state
    arrays = importlib.import_module(LM_CACHES[1]).ArraysCache(len(state))
    arrays.cache = list(state)
    return arrays


def load_layers(load: Callable[..., Any], file_name: str, return_metadata: bool = False) -> Any:
    """``load_prompt_cache``, with the caches that ``save_as_arrays`` saved as they were."""
    return load_entry(load, file_name, return_metadata, SIZES, put_back)


def put_back(cache: list[Any], sizes: Mapping[str, int]) -> None:
    """Replace the ``ArraysCache`` of these numbers by the caches that they were."""
    for number, size in sizes.items():
        cache[int(number)] = from_arrays(cache[int(number)].cache, size)


def from_arrays(arrays: Sequence[Any], window_size: int) -> Any:
    """The cache whose state these arrays are."""
    cache = importlib.import_module(MODEL).LayerCache(window_size)
    *held, offset = arrays
    names = [name for name in vars(cache) if name not in REST]
    vars(cache).update(zip(names, held, strict=True), offset=offset.item())
    return cache


PATCH = Patch(
    id="saved-layer-cache",
    severity="crash",
    summary="mlx-lm: a saved prompt cache of DeepSeek V4.1 does not load",
    targets=(
        Target(*LM_CACHES, "save_prompt_cache", around(save_as_arrays)),
        Target(*LM_CACHES, "load_prompt_cache", around(load_layers)),
    ),
)
