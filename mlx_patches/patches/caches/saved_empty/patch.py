"""mlx-lm: saving a prompt cache crashes for models whose values have width 0.

Why: DeepSeek V3.2, GLM MoE DSA and Kimi Linear keep values of width 0 for some of their keys. MLX
    before 0.32.1 rejects such an array in a safetensors file, so ``save_prompt_cache``, and with it
    the command ``mlx_lm.cache_prompt``, raises ValueError for every prompt.
How: If the release raises, the caches are saved again with zeros in place of these arrays; an entry
    of the caller's metadata has their shapes. ``load_prompt_cache`` removes the entry and cuts the
    arrays back to these shapes. A file without such arrays stays the same byte for byte.
Upstream: MLX 0.32.1 writes arrays without elements; mlx-lm 0.32.0 needs MLX 0.32.2.
Retire when: No supported release is older than mlx-lm 0.32.0.
"""

from collections.abc import Sequence
from typing import Any

from ....core.verbs import Function, Patch, mx, wrap
from ..._shared.prompt_files import load_entry, save_entry

# The entry of a file's metadata: the shape of each array without elements, by its name.
SHAPES = "_mlx_patches_empty_arrays"


def save_filled(save: Function, file_name: str, cache: Sequence[Any], metadata: Any = None) -> None:
    """Save the caches; if the release raises because of empty arrays, save them filled."""
    try:
        return save_entry(save, file_name, cache, metadata, SHAPES, {})
    except ValueError:
        shapes = find_empty(cache)
        if not shapes:
            raise
    save_entry(save, file_name, list(map(fill_empty, cache)), metadata, SHAPES, shapes)


def find_empty(cache: Sequence[Any]) -> dict[str, tuple[int, ...]]:
    """The shapes of the arrays without elements in the caches' states, by name in the file."""
    from mlx.utils import tree_flatten

    arrays = dict(tree_flatten([layer.state for layer in cache]))
    return {name: array.shape for name, array in arrays.items() if is_empty(array)}


def is_empty(leaf: Any) -> bool:
    return isinstance(leaf, mx.array) and leaf.size == 0


def fill_empty(layer: Any) -> Any:
    """A copy of a cache for saving, whose state has no empty arrays."""
    from mlx.utils import tree_map

    def fill(array: Any) -> Any:
        if not is_empty(array):
            return array
        return mx.zeros([size or 1 for size in array.shape], array.dtype)

    # The release saves the name of the class, ``state`` and ``meta_state``.
    own = type(layer)
    kind: Any = type(own.__name__, (own,), {"state": tree_map(fill, layer.state)})
    filled = kind.__new__(kind)
    vars(filled).update(vars(layer))
    return filled


def load_filled(load: Function, file_name: str, return_metadata: bool = False) -> Any:
    """Load the caches; the arrays that ``save_filled`` filled are empty again."""
    return load_entry(load, file_name, return_metadata, SHAPES, restore_empty)


def restore_empty(cache: Sequence[Any], shapes: dict[str, Sequence[int]]) -> None:
    from mlx.utils import tree_map_with_path

    def cut(name: str, array: Any) -> Any:
        return array[tuple(map(slice, shapes[name]))] if name in shapes else array

    for number in sorted({int(name.partition(".")[0]) for name in shapes}):
        layer = cache[number]
        meta = layer.meta_state
        layer.state = tree_map_with_path(cut, layer.state, path=str(number))
        layer.meta_state = meta  # after the state, as the release restores it


PATCH = Patch(
    id="saved-empty",
    severity="crash",
    every_model=True,
    targets=(
        *wrap("mlx_lm.models.cache:save_prompt_cache", save_filled),
        *wrap("mlx_lm.models.cache:load_prompt_cache", load_filled),
    ),
)
