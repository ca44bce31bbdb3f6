"""Variants of a family's tiny config, since users' configs differ.

A variant sets fields that users' configs set: another rope type, other layers. A family whose
source names none of the fields does not have the variant. A variant that the family's code
refuses, or that changes no logit, is not built.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from . import Family
from .families import source_files

Config = dict[str, Any]
# Some rope types change at this position: the scenarios' prompts are on both sides of it.
_ORIGINAL = {"original_max_position_embeddings": 8}
# Half of the lab's head width: one factor per pair of rotated dimensions.
_PAIRS = 16


class Variant(NamedTuple):
    """A change of a small config.

    Args:
        fields: names of config fields; a family has the variant if its source names one of them.
        change: returns the changed config. Fields that the family does not have are harmless.
    """

    fields: tuple[str, ...]
    change: Callable[[Config], Config]


def _rope(kind: str, **settings: Any) -> Variant:
    """Another rope type, in ``rope_scaling`` and in ``rope_parameters``."""
    rope = {"type": kind, "rope_type": kind, **settings}

    def change(config: Config) -> Config:
        # Some families read these from the config's top level.
        fields = {"max_position_embeddings": 512, **settings}
        own = {name: value for name, value in fields.items() if config.get(name) is None}
        changed = {**config, **own, "rope_scaling": {**(config.get("rope_scaling") or {}), **rope}}
        if isinstance(parameters := config.get("rope_parameters"), dict):
            changed["rope_parameters"] = {
                name: {**value, **rope} if isinstance(value, dict) else value
                for name, value in {**parameters, **rope}.items()
            }
        return changed

    return Variant(("rope_scaling", "rope_parameters"), change)


def _values(**fields: Any) -> Variant:
    return Variant(tuple(fields), lambda config: {**config, **fields})


def _without_windows(config: Config) -> Config:
    """Full attention in every sliding layer; other kinds of layers stay."""
    slides = "sliding_attention"
    changed = {**config, "sliding_window": None, "use_sliding_window": False}
    if isinstance(kinds := config.get("layer_types"), list):
        changed["layer_types"] = ["full_attention" if one == slides else one for one in kinds]
    return changed


# More layers than a small config has.
_ALL = 64
# Experts in every layer.
_SPARSE = {"enable_moe_block": True, "first_k_dense_replace": 0, "mlp_only_layers": []}
_EXPERTS = {
    **_SPARSE,
    **dict.fromkeys(("n_routed_experts", "num_experts", "num_local_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "top_k_experts"), 2),
    **dict.fromkeys(("moe_intermediate_size", "shared_intermediate_size"), 32),
}

VARIANTS: dict[str, Variant] = {
    "linear": _rope("linear", factor=2.0),
    "dynamic": _rope("dynamic", factor=2.0, alpha=2.0),
    "llama3": _rope("llama3", factor=2.0, low_freq_factor=1.0, high_freq_factor=4.0, **_ORIGINAL),
    "yarn": _rope("yarn", factor=4.0, **_ORIGINAL),
    "longrope": _rope(
        "longrope",
        factor=4.0,
        **_ORIGINAL,
        short_factor=[1.0 + pair / _PAIRS for pair in range(_PAIRS)],
        long_factor=[4.0 + 4 * pair / _PAIRS for pair in range(_PAIRS)],
    ),
    "full-attention": Variant(("sliding_window",), _without_windows),
    "own-keys": _values(num_kv_shared_layers=0),
    "tied": _values(tie_word_embeddings=True),
    "untied": _values(tie_word_embeddings=False),
    "sinks": _values(add_swa_attention_sink_bias=True, add_full_attention_sink_bias=True),
    "dense": _values(first_k_dense_replace=_ALL, mlp_only_layers=list(range(_ALL))),
    "experts": Variant((*_SPARSE, "num_local_experts"), lambda config: config | _EXPERTS),
}


def has_variant(family: Family, variant: str) -> bool:
    source = "".join(file.read_text(errors="replace") for file in source_files(family))
    return any(name in source for name in VARIANTS[variant].fields)


def vary(config: Mapping[str, Any], variant: str) -> Config:
    """Change a family's small config, and that of its text model, to one of ``VARIANTS``."""
    changed = VARIANTS[variant].change(dict(config))
    if isinstance(inner := config.get("text_config"), dict):
        changed["text_config"] = vary(inner, variant)
    return changed
