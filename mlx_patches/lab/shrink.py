"""Makes a small config from a family's dataclass, by field name and type."""

import dataclasses
import functools
import re
import types
import typing
from collections.abc import Mapping
from typing import Any

from ..core.model_files import is_number, show

VOCABULARY = 96
LAYERS = 4
WINDOW = 8

# A regular expression for a whole field name, to a small value.
_BY_NAME: dict[str, Any] = {
    r"(vocab_size|padded_vocab_size|n_vocab|vocab_size_per_layer_input|embedding_size)": VOCABULARY,
    # Heads of width 32, the smallest group size in which keys and values can be quantized.
    r"(hidden_size|d_model|n_embd|dim|model_dim|embed_dim|hidden_dim|n_embed|block_dim)": 128,
    r"(intermediate_size|ffn_dim|ffn_hidden_size|d_ff|n_inner|inner_size|mlp_hidden_size|"
    r"intermediate_size_mlp|dense_intermediate_size|block_ff_dim|hidden_size_ffn)": 96,
    r"(moe_intermediate_size|shared_expert_intermediate_size|moe_shared_expert_intermediate_size|"
    r"expert_ffn_hidden_size|moe_shared_intermediate_size|expert_hidden_dim)": 32,
    r"(num_hidden_layers|n_layers|num_layers|n_layer|num_hidden_layer)": LAYERS,
    r"(num_attention_heads|n_heads|n_head|num_heads|swa_num_attention_heads)": 4,
    r"(num_key_value_heads|n_kv_heads|num_kv_heads|num_query_groups|num_global_key_value_heads|"
    r"swa_num_key_value_heads|num_attention_groups|num_key_value_head)": 2,
    r"(head_dim|global_head_dim|v_head_dim|qk_nope_head_dim|swa_head_dim|swa_v_head_dim|"
    r"attention_head_dim|kv_channels|d_head|attn_head_dim)": 32,
    r"(qk_rope_head_dim|rotary_dim|rope_head_dim)": 32,
    r"qk_head_dim": 64,
    r"(q_lora_rank|kv_lora_rank|o_lora_rank)": 32,
    r"(sliding_window|sliding_window_size|window_size|attention_window_size|local_window_size|"
    r"attention_chunk_size|swa_window|window|local_attention_window)": WINDOW,
    r"(sliding_window_pattern|_sliding_window_pattern|full_attention_interval|"
    r"global_attn_every_n_layers|interleave_moe_layer_step|layer_group_size|"
    r"no_rope_layer_interval)": 2,
    r"(num_experts|n_routed_experts|num_local_experts|moe_num_experts|num_routed_experts|"
    r"n_experts)": 4,
    r"(num_experts_per_tok|num_experts_per_token|moe_topk|moe_k|top_k_experts|moe_top_k|top_k|"
    r"num_experts_per_topk|num_selected_experts|moe_router_topk|num_activated_experts)": 2,
    r"(n_group|topk_group|num_expert_group|n_shared_experts|num_shared_experts|n_groups|"
    r"mamba_n_groups|moe_num_shared_experts|num_expert_groups)": 1,
    r"(first_k_dense_replace|num_dense_layers|n_dense_layers|first_k_dense)": 1,
    r"num_kv_shared_layers": 2,
    r"hidden_size_per_layer_input": 8,
    # With a factor of 1, ignoring it would not show.
    r"(embedding_multiplier|scale_emb)": 2.0,
    # 1 / head width, like in released models: a factor of 1 would magnify rounding.
    r"attention_multiplier": 1 / 32,
    # Metal's state space kernel splits the state among 32 threads.
    r"(state_size|ssm_state_size|mamba_d_state|d_state)": 32,
    r"(mamba_num_heads|mamba_n_heads)": 4,
    r"(mamba_head_dim|mamba_d_head)": 32,
    r"(linear_num_value_heads|linear_num_heads)": 4,
    r"linear_num_key_heads": 2,
    # The width of real models: Metal's one-token kernel supports no other.
    r"linear_key_head_dim": 128,
    r"(linear_value_head_dim|linear_head_dim)": 32,
    r"(index_head_dim|index_dim)": 32,
    r"(index_n_heads|index_num_heads)": 2,
    r"(index_topk)": 64,
    r"(lru_width|mamba_d_ssm|d_inner|mamba_intermediate_size)": 128,
    r"time_step_rank": 8,
    r"topk_method": "noaux_tc",
    r"(scoring_func|router_activation_func)": "sigmoid",
    r"(max_position_embeddings|n_positions|max_seq_len|max_sequence_length|n_ctx)": 512,
    r"(rms_norm_eps|layer_norm_eps|norm_eps|layer_norm_epsilon|norm_epsilon|layernorm_epsilon|"
    r"layer_norm_rms_epsilon|rms_norm_epsilon)": 1e-5,
    r"(rope_theta|rope_local_base_freq|rotary_emb_base|rope_base|rope_global_base_freq)": 10000.0,
    r"(pad_token_id|bos_token_id|eos_token_id|image_token_id|image_token_index|video_token_id|"
    r"video_token_index|audio_token_id|audio_token_index|vision_start_token_id|"
    r"vision_end_token_id)": 0,
}
_PATTERNS = [(re.compile(name), value) for name, value in _BY_NAME.items()]
# Fields that models need although they default to None.
_NEEDED = {"head_dim", "num_key_value_heads", "rope_theta", "vocab_size"}
# For fields without a default and without a rule.
_BY_TYPE = {int: 2, float: 1.0, bool: False, str: "", dict: {}, list: [], tuple: ()}


def small_config(cls: type, overrides: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Arguments, with nested dictionaries, for a small instance of a config dataclass."""
    overrides = overrides or {}
    config: dict[str, Any] = {}
    for field in dataclasses.fields(cls):
        name, inner = field.name, config_class(cls, field.name)
        if not field.init:
            continue
        if inner is not None:
            config[name] = small_config(inner, overrides.get(name, {}))
        elif name in overrides:
            config[name] = overrides[name]
        elif (value := _small(field, _kind(cls, name))) is not dataclasses.MISSING:
            config[name] = value
    return config


def instance(cls: type, config: Mapping[str, Any]) -> Any:
    """An instance of the dataclass from a config, with nested dataclasses."""
    values = {}
    for field in dataclasses.fields(cls):
        if field.init and field.name in config:
            value, inner = config[field.name], config_class(cls, field.name)
            is_nested = isinstance(value, dict)
            values[field.name] = instance(inner, value) if inner and is_nested else value
    return cls(**values)


def config_class(cls: type, name: str) -> type | None:
    """The config dataclass of a field; None if the field holds something else."""
    kind = _kind(cls, name)
    return kind if dataclasses.is_dataclass(kind) and isinstance(kind, type) else None


def shrink_config(config: Mapping[str, Any], cls: type) -> dict[str, Any]:
    """A user's config made small, with the same layer types, rope and sharing flags.

    Widths, counts and windows are cut to the values of ``small_config``. A list with one entry per
    layer keeps its start, which includes every kind of entry. Other values stay.
    """
    small = small_config(cls)
    layers, kept = _layers(config)
    fields = {field.name for field in dataclasses.fields(cls)}
    result = dict(small)
    for name, value in config.items():
        inner = config_class(cls, name)
        if inner is not None and isinstance(value, dict) and small.get(name):
            result[name] = shrink_config(value, inner)
        elif name in fields:
            result[name] = _cut(value, layers, kept, name)
        elif not isinstance(value, (list, dict)):
            result[name] = _least(value, name)
    return _narrow_ropes(result, config)


def shrink_values(config: Mapping[str, Any], names: Mapping[str, str] | None = None) -> Any:
    """A transformers config made small; ``names``: a field's standard name, if it differs."""
    names = names or {}
    layers, kept = _layers(config, names)
    small = {
        name: shrink_values(value, names)
        if isinstance(value, dict) and name != "id2label"
        else _cut(value, layers, kept, name, names.get(name, name))
        for name, value in config.items()
    }
    return _narrow_ropes(small, config)


# The rope settings. FACTORS are lists with one entry per pair of rotated dimensions; _SECTIONS are
# the numbers of pairs for each axis of an image.
_ROPES = {"rope_scaling", "rope_parameters"}
FACTORS, _SECTIONS = {"short_factor", "long_factor"}, {"mrope_section"}


def rope_width(config: Mapping[str, Any]) -> int:
    """The rotated width of a config's heads; 0 if the config has no width."""
    heads = int(config.get("num_attention_heads") or 1)
    own = config.get("qk_rope_head_dim") or config.get("head_dim")
    return int(own or (config.get("hidden_size") or 0) // heads)


def _narrow_ropes(small: dict[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """A small config with rope settings that fit its head width."""
    ratio = rope_width(small) / (rope_width(config) or 1)
    return small | {name: _narrow_rope(small[name], ratio or 1) for name in _ROPES & small.keys()}


def _narrow_rope(rope: Any, ratio: float) -> Any:
    """A rope setting for heads whose width is multiplied by ``ratio``."""
    if not isinstance(rope, dict):
        return rope
    result = {}
    for name, value in rope.items():
        if name in FACTORS and isinstance(value, list):
            value = value[: max(1, round(len(value) * ratio))]
        elif name in _SECTIONS and isinstance(value, list):
            parts = [int(one * ratio) for one in value]
            value = [parts[0] + round(sum(value) * ratio) - sum(parts), *parts[1:]]
        result[name] = _narrow_rope(value, ratio)
    return result


def grow_config(config: Mapping[str, Any], sizes: Mapping[str, Any]) -> dict[str, Any]:
    """A small config, also its nested ones, with these sizes; lists by layer are repeated."""
    layers = int(sizes.get("num_hidden_layers", LAYERS))
    grown: dict[str, Any] = {}
    for name, value in config.items():
        if name in sizes:
            grown[name] = sizes[name]
        elif isinstance(value, dict):
            grown[name] = grow_config(value, sizes)
        elif isinstance(value, list) and len(value) == LAYERS:
            grown[name] = [value[index % LAYERS] for index in range(layers)]
        else:
            grown[name] = value
    return grown


def _layers(config: Mapping[str, Any], names: Mapping[str, str] | None = None) -> tuple[int, int]:
    """The number of layers, and of the first ones that include every kind, at least LAYERS."""
    names, kept = names or {}, LAYERS
    layers = next((config[n] for n in config if _counts_layers(names.get(n, n))), LAYERS)
    for value in config.values():
        if isinstance(value, (list, str)) and len(value) == layers and layers:
            kinds = {str(entry) for entry in value}
            # Entries that all differ are layer numbers, not kinds.
            several = len(kinds) < layers
            while several and kept < layers and {str(entry) for entry in value[:kept]} != kinds:
                kept += 1
    # The last layers share the keys and values of earlier ones, one per kind of layer.
    shared = min(int(config.get("num_kv_shared_layers") or 0), _BY_NAME["num_kv_shared_layers"])
    return layers, min(kept + shared, layers) or LAYERS


def _cut(value: Any, layers: int, kept: int, *names: str) -> Any:
    """A field's value made small, with one entry per kept layer if it had one per layer."""
    if isinstance(value, (list, str)) and len(value) == layers:
        return value[:kept]
    return kept if _counts_layers(names[-1]) else _least(value, *names)


def _least(value: Any, *names: str) -> Any:
    """A field's value, at most the small value of the first of its names that has a rule."""
    rule = next((one for one in map(_rule, names) if one is not dataclasses.MISSING), None)
    return min(value, rule) if type(value) is type(rule) is int else value


def odd_number(config: Mapping[str, Any], place: str = "") -> str:
    """The first size in a config that is negative or not a number, as a sentence; empty if none is.

    Some published configs have such values, so this only explains why a model cannot be built.
    """
    for name, value in config.items():
        rule, where = _rule(name), f"{place}{name}"
        if isinstance(value, dict) and (found := odd_number(value, f"{where}.")):
            return found
        if value is None or not is_number(rule) or rule == 0:  # token ids may be lists
            continue
        if not is_number(value):
            return f"{where} is {show(value)}, not a number"
        if value < 0:
            return f"{where} is {show(value)}, which is negative"
    return ""


def _counts_layers(name: str) -> bool:
    return _rule(name) == LAYERS and "layers" in name


def _rule(name: str) -> Any:
    return next((v for pattern, v in _PATTERNS if pattern.fullmatch(name)), dataclasses.MISSING)


def _small(field: dataclasses.Field[Any], kind: Any) -> Any:
    """A field's small value; MISSING to leave the default."""
    ruled = _rule(field.name)
    optional_off = field.default is None and field.name not in _NEEDED
    if ruled is not dataclasses.MISSING and not optional_off:
        return type(ruled)(ruled)
    if field.default is not field.default_factory:  # both are MISSING in a field without one
        return dataclasses.MISSING
    return _BY_TYPE.get(typing.get_origin(kind) or kind)


def _kind(cls: type, name: str) -> Any:
    """The type of a field without None: the first member of a union."""
    kind = _hints(cls).get(name, Any)
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return next(k for k in typing.get_args(kind) if k is not type(None))
    return kind


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(cls)
    except Exception:  # an annotation that this Python cannot evaluate
        return {field.name: field.type for field in dataclasses.fields(cls)}
