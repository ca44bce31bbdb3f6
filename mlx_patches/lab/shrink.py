"""Makes a small config from a family's dataclass, by field name and type."""

import dataclasses
import functools
import tomllib
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..core.model_files import is_number, show

# A config field's name to its small value.
_SIZES: dict[str, Any] = {
    name: size["value"]
    for size in tomllib.loads((Path(__file__).parent / "sizes.toml").read_text())["size"]
    for name in size["names"].split()
}
VOCABULARY, LAYERS, WINDOW = (
    _SIZES[name] for name in ("vocab_size", "num_hidden_layers", "sliding_window")
)
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
    shared = min(int(config.get("num_kv_shared_layers") or 0), _SIZES["num_kv_shared_layers"])
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
    return _SIZES.get(name, dataclasses.MISSING)


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
