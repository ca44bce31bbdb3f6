"""mlx-lm and mlx-vlm: models saved by transformers 5 get wrong RoPE parameters, or do not load.

Why: Transformers 5 writes ``rope_theta``, the scaling and the rotated fraction under
    ``rope_parameters``. Most models of mlx-lm and mlx-vlm read only the old keys: Llama 3 gets a
    base of 10,000 instead of 500,000 and no scaling, and long texts degrade into garbage. Where the
    base has no default, as in Qwen3 and Granite, the model does not load. Gemma 3 and OLMo 3 have
    separate parameters for full and for sliding layers. Qwen3 MoE's ``num_experts`` has another
    name too, the heads of Gemma 4's full layers are in ``per_layer_config``, and infinity in Mamba
    2's limits is a dictionary.
How: If a config has ``rope_parameters`` but no ``rope_theta``, and its class does not know
    ``rope_parameters``, the old keys are added: those of the full layers, and the base of the
    sliding ones as ``rope_local_base_freq``. So are the other old names that the class knows.
Upstream: In mlx-lm 0.32, Qwen3, Granite 4 hybrid and a few others read the new key; Llama and most
    others do not in 0.32.2. In mlx-vlm 0.7.10 most do not.
Retire when: Every model of a supported release reads ``rope_parameters``.
"""

import inspect
from collections.abc import Mapping
from typing import Any

from ....core.verbs import Patch, argument
from ..._shared.configs import FROM_DICT

_NEW, _SCALING, _LIMIT = "rope_parameters", "rope_scaling", "time_step_limit"
# The old names of the base; the second in some classes of Gemma 3, the third in GPT-NeoX.
_BASES = {"rope_theta", "rope_global_base_freq", "rotary_emb_base"}
_EMPTY = inspect.Parameter.empty
# Other old names to their new ones.
_RENAMED = {"num_experts": "num_local_experts"}


def add_old_names(cls: Any, params: Any, /) -> Any:
    """The content of ``config.json``, with the old names that the config class reads."""
    if isinstance(params, dict):
        return {**params, **find_old_names(params, inspect.signature(cls).parameters)}
    return params


def find_old_names(
    params: dict[str, Any], known: Mapping[str, inspect.Parameter]
) -> dict[str, Any]:
    """The values that a config has under new names, under the old names that its class reads."""
    old = {name: params[new] for name, new in _RENAMED.items() if new in params}
    old |= find_full_heads(params.get("per_layer_config"))
    nested = params.get(_NEW)
    if isinstance(nested, dict) and params.get("rope_theta") is None and _BASES & set(known):
        rope = find_old_rope(nested)
        if _NEW not in known:
            old |= rope
        else:  # the layers of Mistral 3 read only the base; GLM-4.5V's class requires the fraction
            unset = {name for name in rope if name in known and known[name].default is _EMPTY}
            if known["rope_theta"].default is None:
                unset.add("rope_theta")
            old |= {name: rope[name] for name in unset}
    named = {
        name: value for name, value in old.items() if name in known and params.get(name) is None
    }
    if _SCALING in known and known[_SCALING].default is _EMPTY:
        named.setdefault(_SCALING, params.get(_SCALING))
    limit = params.get(_LIMIT)
    if isinstance(limit, list):  # infinity is a dictionary in a strict file
        named[_LIMIT] = [float(v["__float__"]) if isinstance(v, dict) else v for v in limit]
    return named


def find_full_heads(layers: Any) -> dict[str, Any]:
    """The heads of Gemma 4's full layers under their old names, from settings by layer."""
    full = next(iter(layers.values()), None) if isinstance(layers, dict) else None
    names = {"head_dim": "global_head_dim", "num_key_value_heads": "num_global_key_value_heads"}
    return {names[name]: value for name, value in (full or {}).items() if name in names}


def find_old_rope(nested: dict[str, Any]) -> dict[str, Any]:
    full, sliding = nested.get("full_attention", nested), nested.get("sliding_attention")
    if not isinstance(full, dict) or "rope_theta" not in full:
        return {}
    old = dict.fromkeys(_BASES, full["rope_theta"])
    for name in ("partial_rotary_factor", "rotary_pct"):
        old[name] = full.get("partial_rotary_factor")
    if isinstance(sliding, dict):
        old["rope_local_base_freq"] = sliding.get("rope_theta")
    kind = full.get("rope_type", full.get("type", "default"))
    # Ropes ignore keys that they do not know; some classes ask for ``type``.
    is_scaled = kind != "default" or "mrope_section" in full
    scaling = {_SCALING: {"type": kind, **full}} if is_scaled else {}
    return {name: value for name, value in (old | scaling).items() if value is not None}


PATCH = Patch(
    id="nested-rope", every_model=True, targets=argument(FROM_DICT, "params", add_old_names)
)
