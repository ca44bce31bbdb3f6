"""Feeds the indexer's layer two rows, one padded, and looks which positions it selects."""

from types import SimpleNamespace
from typing import Any

from ....probes.kit import Result, Target, import_module, module_with, mx, require_names

WIDTH = 8
POOL = 4
# How many tokens the rows have, and are padded to.
LENGTHS = (3, 6)
LONGEST = max(LENGTHS)
PADDING = [LONGEST - length for length in LENGTHS]


def probe(target: Target) -> Result:
    """Red if a padded row selects other positions than those of its text."""
    module: Any = module_with(target)
    require_names(module, "PoolingCache")
    for side in ("left", "right"):
        cache = make_cache(module, side)
        selected = step(module, cache, LONGEST)
        if side == "right":
            for part in cache.caches:
                part.finalize()
            selected = step(module, cache, 1)
        end = LONGEST + (side == "right")
        for row, padding in enumerate(PADDING):
            if selected[row] != list(range(padding, end)):
                text = f"its text is {padding} to {end - 1}"
                return Result(True, f"with {side} padding a row selects {selected[row]}, {text}")
    return Result(False, "padded rows select their text")


def make_cache(module: Any, side: str) -> Any:
    left = PADDING if side == "left" else [0] * len(PADDING)
    caches = import_module("mlx_vlm.models.cache")
    parts = [*(caches.BatchKVCache(left) for _ in range(2)), caches.BatchPoolingCache(POOL, left)]
    if side == "right":
        for part in parts:
            part.prepare(lengths=list(LENGTHS), right_padding=PADDING)
    return module.CacheList(*parts)


def step(module: Any, cache: Any, length: int) -> list[list[int]]:
    """The positions that each row's last token selects, after a call of this length."""
    config = SimpleNamespace(
        index_n_heads=1,
        index_head_dim=WIDTH,
        index_topk=4 * POOL,
        index_kpool=POOL,
        index_kpool_always_select_tail=True,
        q_lora_rank=WIDTH,
        hidden_size=WIDTH,
    )
    indexer = module.Glm5NextIndexer(config, 0)
    selected: list[Any] = []

    def layer(x: Any, mask: Any, parts: Any, _: Any) -> tuple[Any, Any]:
        tokens = x[:, :, 0]
        cache.caches[0].update_and_fetch(tokens[:, None], tokens[:, None])
        selected.append(indexer(tokens, tokens, mask, parts[1], parts[2], 0))
        return x, selected[-1]

    layer.block_type = "attention"  # type: ignore[attr-defined]
    model = SimpleNamespace(
        layers=[layer], config=SimpleNamespace(hc_mult=1), norm=lambda hidden: hidden
    )
    embeds = mx.random.normal((len(LENGTHS), length, WIDTH), key=mx.random.key(0))
    module.Glm5NextTextModel.__call__(model, None, embeds, [cache])
    last = selected[0][:, -1].tolist()
    return [sorted(position for position in row if position >= 0) for row in last]
