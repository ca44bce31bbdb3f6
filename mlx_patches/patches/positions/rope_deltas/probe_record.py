"""Moves rows from cache to cache, and compares their next logits with those of solo runs.

Two rows with images and a text are prefilled one after another. Decode steps pass no positions,
so the model must take each row's rope delta from its cache.
"""

import functools
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ....lab import EXACT, engine
from ....lab.compare import differences
from ....lab.rows import feed, record_logits, row_with_image, rows_of, solo
from ....probes.kit import (
    BATCH_PATCHES,
    NotApplicable,
    Result,
    Target,
    mx,
    own_module,
    require_module,
    require_names,
    tiny,
    with_patches,
)

# The probe uses the first family that the lab can build with an image in this release.
_FAMILIES = ("glm4v", "paddleocr_vl", "qwen2_5_vl", "qwen2_vl")
_LENGTH = 11
_STEPS = 3
_BATCHES = {
    "KVCache": "BatchKVCache",
    "RotatingKVCache": "BatchRotatingKVCache",
    "ArraysCache": "ArraysCache",
}


def follow_rows(target: Target) -> Result:
    """Red if a row's logits differ from its solo run after the target's operation."""
    require_module("mlx_vlm")  # only its models need it
    kind, _, operation = target.name.rpartition(".")
    caches = own_module(target)
    model = build_model(("qwen3_5",) if kind == "ArraysCache" else _FAMILIES)
    with with_patches((*BATCH_PATCHES, "rotating-restored", "arrays-restored")):
        # Solo runs first: they must not read state that the batch left on the model.
        images = [row_with_image(model, _LENGTH, patches) for patches in ((2, 2), (3, 2))]
        rows = [*images, *rows_of(model, [_LENGTH])]
        solos = [solo(model, row) for row in rows]
        engine.forget(model)
        moved = _MOVES[operation](Rows(model, caches, kind), rows)
    places = [next(at for at, row in enumerate(rows) if row is one) for one in moved]
    cell = differences([row.logits for row in moved], [solos[at] for at in places], EXACT)
    return Result(cell.verdict == "red", cell.detail, cell.figure)


@functools.cache
def build_model(families: tuple[str, ...]) -> Any:
    reasons = []
    for family in families:
        try:
            model = tiny("mlx-vlm", family)
            row_with_image(model, _LENGTH, (2, 2))
        except NotApplicable as reason:
            reasons.append(f"{family}: {reason}")
        else:
            return model
    raise NotApplicable("; ".join(reasons))


class Rows:
    """Runs rows in the caches of a module instead of those that the model makes."""

    def __init__(self, model: Any, caches: Any, kind: str):
        self.model, self.caches = model, caches
        self.rotating = "Rotating" in kind
        self.several = kind in _BATCHES.values()

    def make(self) -> list[Any]:
        """Make empty caches of one row."""
        return [self._like(layer) for layer in self.model.make_cache()]

    def _like(self, layer: Any) -> Any:
        name = type(layer).__name__
        if name == "ArraysCache":
            if hasattr(layer, "update_window"):  # such a model does not run with mlx-lm's cache
                require_names(self.caches.ArraysCache, "update_window")
            return self.caches.ArraysCache(len(layer.cache))
        if name != "KVCache":
            raise NotApplicable(f"the model has a {name}")
        # No row here has as many as 64 tokens.
        return self.caches.RotatingKVCache(64) if self.rotating else self.caches.KVCache()

    def prefill(self, rows: Sequence[Any]) -> list[list[Any]]:
        """Prefill the rows one after another; returns each row's caches."""
        filled = []
        for row in rows:
            filled.append(self.make())
            feed(self.model, [row], filled[-1], row.chunks[0])
        return filled

    def merge(self, filled: Sequence[list[Any]]) -> list[Any]:
        return [self._batch(layers[0]).merge(list(layers)) for layers in zip(*filled, strict=True)]

    def _batch(self, layer: Any) -> Any:
        batch = getattr(self.caches, _BATCHES[type(layer).__name__])
        require_names(batch, "merge")
        return batch

    def decode(self, rows: Sequence[Any], cache: list[Any], count: int = _STEPS) -> None:
        """Feed each row one token per step, without positions."""
        for _ in range(count):
            record_logits(rows, self.model.call(mx.array([row.take(1) for row in rows]), cache))


def _merge(batch: Rows, rows: list[Any]) -> list[Any]:
    batch.decode(rows, batch.merge(batch.prefill(rows)))
    return rows


def _extend(batch: Rows, rows: list[Any]) -> list[Any]:
    first, *more = batch.prefill(rows)
    batch.decode(rows, engine.extend(batch.merge([first]), batch.merge(more)))
    return rows


def _filter(batch: Rows, rows: list[Any]) -> list[Any]:
    cache = batch.merge(batch.prefill(rows))
    batch.decode(rows, cache, 1)
    engine.keep(cache, [1, 2])
    batch.decode(rows[1:], cache)
    return rows[1:]


def _extract(batch: Rows, rows: list[Any]) -> list[Any]:
    cache = batch.merge(batch.prefill(rows))
    batch.decode(rows, cache, 1)
    batch.decode(rows[1:2], engine.extract(cache, 1))
    return rows[1:2]


def _restore(
    restore: Callable[[Rows, list[Any]], list[Any]], batch: Rows, rows: list[Any]
) -> list[Any]:
    filled = batch.prefill(rows)
    if batch.several:
        batch.decode(rows, restore(batch, batch.merge(filled)))
        return rows
    batch.decode(rows[:1], restore(batch, filled[0]))
    return rows[:1]


def _from_state(layer: Any) -> Any:
    """Restore a new cache from another's own state; ``meta_state`` is passed as text or a tuple."""
    kind: Any = type(layer)
    if not hasattr(layer, "meta_state"):
        return kind.from_state(layer.state)
    meta = layer.meta_state
    return kind.from_state(layer.state, str(meta) if isinstance(meta, str) else tuple(meta))


def _from_file(batch: Rows, cache: list[Any]) -> list[Any]:
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder, "prompt.safetensors"))
        batch.caches.save_prompt_cache(file, cache)
        loaded: list[Any] = batch.caches.load_prompt_cache(file)
        return loaded


_MOVES: dict[str, Callable[[Rows, list[Any]], list[Any]]] = {
    "merge": _merge,
    "extend": _extend,
    "filter": _filter,
    "extract": _extract,
    "state": functools.partial(_restore, lambda batch, cache: list(map(_from_state, cache))),
    "meta_state": functools.partial(_restore, lambda batch, cache: engine.restore_copies(cache)),
    "save_prompt_cache": functools.partial(_restore, _from_file),
    "load_prompt_cache": functools.partial(_restore, _from_file),
}
