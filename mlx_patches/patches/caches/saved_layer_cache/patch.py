"""mlx-lm: a saved prompt cache of DeepSeek V4.1 does not load.

Why: ``save_prompt_cache`` writes the name of each cache's class, and ``load_prompt_cache`` looks it
    up in mlx-lm's cache module. The ``LayerCache`` of ``deepseek_v41`` is not there, and has no
    ``from_state``: every file raises KeyError. Its state also lacks the window size.
How: Such caches are saved as an ``ArraysCache`` of the same arrays; an entry of the caller's
    metadata has their window sizes. ``load_prompt_cache`` removes the entry and rebuilds the
    caches. A file without such caches stays the same byte for byte.
Upstream: Not fixed in mlx-lm 0.32.2.
Retire when: ``load_prompt_cache`` restores the cache classes that models define.
"""

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from ....core.verbs import Function, Patch, wrap
from ..._shared.prompt_files import load_entry, save_entry
from ..._shared.targets import LM_CACHES

# The entry of a file's metadata: each such cache's window size, by layer.
SIZES = "_mlx_patches_layer_caches"
MODEL = "mlx_lm.models.deepseek_v41"
# The attributes that a state does not hold as named arrays.
REST = ("window_size", "offset")


def save_as_arrays(
    save: Function, file_name: str, cache: Sequence[Any], metadata: Any = None
) -> None:
    sizes = {number: one.window_size for number, one in enumerate(cache) if is_layer_cache(one)}
    if sizes:
        cache = [convert_to_arrays(one) if is_layer_cache(one) else one for one in cache]
    save_entry(save, file_name, cache, metadata, SIZES, sizes)


def is_layer_cache(cache: Any) -> bool:
    kind = type(cache)
    return (kind.__module__, kind.__name__) == (MODEL, "LayerCache")


def convert_to_arrays(cache: Any) -> Any:
    state = cache.state
    arrays = importlib.import_module(LM_CACHES).ArraysCache(len(state))
    arrays.cache = list(state)
    return arrays


def load_layers(load: Function, file_name: str, return_metadata: bool = False) -> Any:
    """Load the caches; those that ``save_as_arrays`` converted are a ``LayerCache`` again."""
    return load_entry(load, file_name, return_metadata, SIZES, restore_layers)


def restore_layers(cache: list[Any], sizes: Mapping[str, int]) -> None:
    for number, size in sizes.items():
        cache[int(number)] = make_layer_cache(cache[int(number)].cache, size)


def make_layer_cache(arrays: Sequence[Any], window_size: int) -> Any:
    cache = importlib.import_module(MODEL).LayerCache(window_size)
    *held, offset = arrays
    names = [name for name in vars(cache) if name not in REST]
    vars(cache).update(zip(names, held, strict=True), offset=offset.item())
    return cache


PATCH = Patch(
    id="saved-layer-cache",
    severity="crash",
    targets=(
        *wrap("mlx_lm.models.cache:save_prompt_cache", save_as_arrays),
        *wrap("mlx_lm.models.cache:load_prompt_cache", load_layers),
    ),
)
