"""Looks up a prompt in an empty prefix cache, for a language model without a config."""

from types import SimpleNamespace
from typing import Any

from ....probes.kit import Result, Target, import_module, make_bare_generator, own_module


def probe(target: Target) -> Result:
    """Red if the look-up raises."""
    module = own_module(target)
    if target.name.endswith("_apc_pick_for"):
        found = make_generator(module)._apc_pick_for(make_sequence(module))
    else:
        found = make_generator(module)._apc_media_token_ids()
    return Result(bool(found), f"an empty prefix cache has {found or 'nothing'}")


def make_generator(module: Any, **options: Any) -> Any:
    apc = import_module("mlx_vlm.apc")
    state: dict[str, Any] = {
        "model": SimpleNamespace(layers=[]),
        "apc_manager": apc.APCManager(num_blocks=8, block_size=4),
        "apc_mode": "block",
    }
    return make_bare_generator(module, **{**state, **options})


def make_sequence(module: Any) -> tuple[Any, ...]:
    """Make a waiting prompt: 5 values in mlx-vlm 0.5, 6 in later releases."""
    sequence: tuple[Any, ...] = (0, list(range(10)), 4, {}, None, None)
    return sequence[:5] if module.__name__ == "mlx_vlm.generate" else sequence
