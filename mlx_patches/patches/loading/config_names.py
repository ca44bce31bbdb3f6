"""LFM2.5 and Nemotron-H are not loaded: their configs have names that a release does not know.

Why
    LFM2.5 has ``intermediate_size`` for ``block_ff_dim``. Newer configs of Nemotron-H list the
    kinds of their layers, by new names, in place of a pattern and a number of layers.
How
    The old names are given too, where a config lacks them and the class asks for them.
Upstream
    mlx-lm 0.31.2 reads the list of Nemotron-H, 0.32.0 its new names, and LFM2.5.
Retire when
    No supported release is older than mlx-lm 0.32.
"""

from __future__ import annotations

from typing import Any

from ...core.errors import refusal
from ...core.patch import Patch, Target
from .configs import Params, reads

_FEED_FORWARD = "intermediate_size"
_LETTERS = {
    "full_attention": "*",
    "attention": "*",
    "linear_attention": "M",
    "mamba": "M",
    "conv": "M",
    "moe": "E",
    "mlp": "-",
}


def lfm2(params: Params) -> Params:
    """What a config of LFM2 or LFM2.5 says, by the names of LFM2."""
    if params.get("block_ff_dim") is None and params.get(_FEED_FORWARD) is not None:
        return {**params, "block_ff_dim": params[_FEED_FORWARD]}
    return params


def nemotron_h(params: Params) -> Params:
    """What a config of Nemotron-H says, with its pattern and number of layers.

    Raises:
        ValueError: a layer is of an unknown kind.
    """
    pattern: Any = params.get("hybrid_override_pattern")
    kinds = params.get("layers_block_type") or params.get("layer_types")
    if pattern is None and kinds:
        unknown = sorted(set(kinds).difference(_LETTERS))
        if unknown:
            raise refusal(ValueError(f"layers of Nemotron-H that are not known: {unknown}"))
        pattern = [_LETTERS[kind] for kind in kinds]
        # Releases that read the list themselves know fewer names.
        params = {name: value for name, value in params.items() if name != "layers_block_type"}
    if pattern is None:
        return params
    number = params.get("num_hidden_layers") or len(pattern)
    return {**params, "hybrid_override_pattern": pattern, "num_hidden_layers": number}


PATCH = Patch(
    id="config-names",
    summary="LFM2.5 and Nemotron-H are not loaded: their configs have names that are not known",
    targets=tuple(
        Target(
            "mlx-lm",
            f"mlx_lm.models.{complete.__name__}",
            "ModelArgs.from_dict",
            reads(complete),
            body=("ModelArgs",),
            adds=True,
        )
        for complete in (lfm2, nemotron_h)
    ),
    probe="mlx_patches.probes.config_names:probe",
    module=__name__,
)
