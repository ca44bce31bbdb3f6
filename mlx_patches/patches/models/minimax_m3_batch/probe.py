"""Runs rows of a tiny MiniMax M3 in a batch, and compares them with solo runs."""

from typing import Any

from ....lab import engine
from ....lab.rows import LENGTHS, compare, decode, prefill, prefill_left, rows_of
from ....lab.scenarios import SCENARIOS
from ....probes.kit import Result, Target, module_of, mx, require_module, tiny

FAMILY = "minimax_m3"
# The lab's scenario for a target.
_SCENARIOS = {"LanguageModel.__call__": "chunked-batch", "MiniMaxM3BatchKVCache.state": "state"}
# Layers with sparse attention attend to one block of two keys: with padding, the release's
# decode step gathers these keys once there are 16 times as many.
_BLOCKS = {"sparse_block_size": 2, "sparse_topk_blocks": 1, "sparse_attention_freq": [0, 1, 0, 1]}
# The prompts are longer by this much: a prompt takes one call, each decode step another.
_LONGER, _STEPS = 20, 4


def probe(target: Target) -> Result:
    """Red if a row in a batch differs from its solo run."""
    require_module(f"mlx_vlm.models.{FAMILY}")
    if target.name.endswith(".offset"):
        return check_offset(module_of(target))
    if target.name in _SCENARIOS:
        cell = SCENARIOS[_SCENARIOS[target.name]](build_model())
    elif target.name.endswith(".extend"):
        cell = compare(model := build_model(), join_empty(model))
    else:
        cell = compare(model := build_model(**_BLOCKS), decode_blocks(model))
    return Result(cell.verdict != "green", cell.detail, cell.figure)


def build_model(**sparse: Any) -> Any:
    """Build the lab's model; ``sparse`` changes its ``sparse_attention_config``."""
    model = tiny("mlx-vlm", FAMILY)
    if not sparse:
        return model
    config = model.module.args.sparse_attention_config | sparse
    return tiny("mlx-vlm", FAMILY, sparse_attention_config=config)


def decode_blocks(model: Any) -> list[Any]:
    """Decode rows of unequal prompts far past the keys that a sparse layer attends to."""
    rows = rows_of(model, [length + _LONGER for length in LENGTHS])
    decode(model, rows, prefill_left(model, rows), _STEPS)
    return rows


def join_empty(model: Any) -> list[Any]:
    """Join a batch with tokens to one without, and decode both."""
    first, *others = rows_of(model, [1, LENGTHS[-1], LENGTHS[-1]])
    cache = engine.extend(engine.batch_cache(model, [0]), prefill(model, others))
    rows = [first, *others]
    decode(model, rows, cache, 3)
    return rows


def check_offset(module: Any) -> Result:
    """Red if an update of a cache changes an offset that was read before."""
    cache = module.MiniMaxM3BatchKVCache([0, 2])
    offset = cache.offset
    before = offset.tolist()
    cache.update_and_fetch(*(mx.zeros((2, 1, 3, 4)) for _ in range(2)))
    after = offset.tolist()
    return Result(after != before, f"{before}, read before an update, is {after} after it")
