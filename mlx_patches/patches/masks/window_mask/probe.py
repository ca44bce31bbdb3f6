"""Makes the masks of a sliding layer with a plain cache, before and past the window."""

from typing import Any

from ....probes.kit import Result, Target, make_fed_cache, module_of

_WINDOW = 4


def probe(target: Target) -> Result:
    """Red if a token sees more or fewer tokens than the window, itself included."""
    caches = module_of(target)
    width = list_visible(_mask_of(caches, 0, 2 * _WINDOW, array=True), 0, 2 * _WINDOW)[-1]
    for before, count in ((0, 3), (0, 7), (2, 1), (3, 1), (4, 1), (6, 1), (6, 3)):
        for array in (False, True):
            shown = list_visible(_mask_of(caches, before, count, array), before, count)
            wanted = [min(len(width), before + i + 1) for i in range(count)]
            if [len(tokens) for tokens in shown] != wanted:
                return Result(
                    True, f"{count} tokens after {before} see {list(map(len, shown))}, not {wanted}"
                )
    return Result(False, f"every token sees a window of {len(width)} tokens")


def _mask_of(caches: Any, before: int, count: int, array: bool) -> Any:
    cache = caches.KVCache()
    if before:
        make_fed_cache(cache, before)
    return cache.make_mask(count, return_array=array, window_size=_WINDOW)


def list_visible(mask: Any, before: int, count: int) -> list[list[int]]:
    """The positions that each of the next tokens attends to."""
    if mask is None:
        return [list(range(before + count))] * count
    if isinstance(mask, str):
        return [list(range(before + i + 1)) for i in range(count)]
    return [[at for at, on in enumerate(row) if on] for row in mask.tolist()]
