"""Build a tiny language model of a family with random weights, from the installed release only."""

import copy
import importlib
import inspect
import math
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from ..core.arrays import mx
from ..evidence.results import NotApplicable, import_optional
from ..evidence.words import BFLOAT16, FLOAT32
from . import TOLERANCES, Family, LabModel, NotBuilt, Tolerance
from .cache_arrays import layers
from .shrink import LAYERS, VOCABULARY, WINDOW, grow_config, instance, shrink_config, small_config
from .variants import vary

Config = dict[str, Any]
Edit = Callable[[Config], Config]

OVERRIDES: Config = tomllib.loads((Path(__file__).parent / "overrides.toml").read_text())
_PROMPT = 10
MAX_PARAMETERS = 20_000_000


def build(
    family: Family,
    seed: int = 0,
    config: Config | None = None,
    dtype: str = FLOAT32,
    sizes: Mapping[str, Any] | None = None,
    variant: str = "",
    edit: Edit | None = None,
) -> LabModel:
    """Build a family's model, from the user's config if given.

    Args:
        seed: the seed of the weights; dtypes differ only in rounding.
        dtype: the dtype of the weights, except those that the release's converter keeps in
            float32.
        sizes: values that replace the small sizes, by field name, for a larger model; a list with
            one entry per layer is repeated.
        variant: one of ``variants.VARIANTS``.
        edit: changes the small config; the release then reads it like a config.json.

    Raises:
        NotBuilt: the family cannot be built; the message is the reason.
    """
    model, small = build_undrawn(family, config, sizes, variant, edit)
    if not sizes:
        refuse_giants(model)
    draw_weights(model, seed)
    cast_weights(model, dtype)
    return lab_model(family, model, small, tolerance_of(family, dtype), dtype)


def tolerance_of(family: Family, dtype: str) -> Tolerance:
    """The tolerance of a tiny model.

    On a GPU, matrix products of different shapes differ in their last digits. A model that rounds
    its activations amplifies this to the rounding steps of bfloat16.
    """
    import mlx.core as mx

    is_coarse = "rounds-activations" in overrides_of(family.distribution, family.name)
    return TOLERANCES[BFLOAT16 if is_coarse and mx.default_device() == mx.gpu else dtype]


def build_undrawn(
    family: Family,
    config: Config | None = None,
    sizes: Mapping[str, Any] | None = None,
    variant: str = "",
    edit: Edit | None = None,
) -> tuple[Any, Config]:
    """A family's model with undrawn weights, and its config; see ``build``."""

    def change(small: Config) -> Config:
        grown = grow_config(small, sizes or {})
        grown = vary(grown, variant) if variant else grown
        return edit(grown) if edit else grown

    try:
        overrides = overrides_of(family.distribution, family.name)
        lacks_metal = "" if mx.metal.is_available() else overrides.get("needs-metal")
        if reason := overrides.get("not-built") or lacks_metal:
            raise NotBuilt(reason)
        make = _lm_model if family.distribution == "mlx-lm" else _vlm_model
        return make(family, config, overrides, change, edit is not None)
    except NotBuilt:
        raise
    except (Exception, SystemExit) as error:
        text = " ".join(str(error).split())[:160]
        raise NotBuilt(f"{type(error).__name__}: {text}") from error


def lab_model(
    family: Family, model: Any, config: Config, tolerance: Tolerance, dtype: str = FLOAT32
) -> LabModel:
    inner = config.get("text_config") or {}
    vocabulary = int(config.get("vocab_size") or inner.get("vocab_size") or VOCABULARY)

    def call(tokens: Any, cache: Any, **kwargs: Any) -> Any:
        out = model(mx.array(tokens), cache=cache, **kwargs)
        return getattr(out, "logits", out).astype(mx.float32)

    make_cache = partial(_make_cache, model, family)
    return LabModel(
        family=family,
        config=config,
        vocabulary=vocabulary,
        window=_window(make_cache()),
        call=call,
        make_cache=make_cache,
        make_batch_cache=partial(_batch_cache, model, family),
        module=model,
        tolerance=tolerance,
        dtype=dtype,
    )


def sensitivity(model: LabModel) -> float:
    """The smallest relative change of the last logits when an earlier token changes.

    Tries every earlier position that the last one attends to.
    """
    tokens = [1 + (7 * i) % (model.vocabulary - 2) for i in range(_PROMPT)]
    base = model.call([tokens], model.make_cache())[0, -1]
    scale = mx.abs(base).max().item()
    first = max(0, _PROMPT - model.window) if model.window else 0
    moved = []
    for position in range(first, _PROMPT - 1):
        changed = list(tokens)
        changed[position] = 1 + (changed[position] + 5) % (model.vocabulary - 2)
        logits = model.call([changed], model.make_cache())[0, -1]
        moved.append(mx.abs(logits - base).max().item() / scale)
    least = float(min(moved))
    if math.isnan(least) or not scale:
        raise NotBuilt("logits are not finite")
    return least


def differ(one: LabModel, other: LabModel) -> bool:
    """Whether two models of one family and one seed return different logits for a prompt."""
    tokens = [[1 + (7 * i) % (one.vocabulary - 2) for i in range(_PROMPT)]]
    first, second = (model.call(tokens, model.make_cache()) for model in (one, other))
    return not mx.array_equal(first, second).item()


# Layer kinds that a family's source may name, in alternation order.
_ATTENTION = ("sliding_attention", "linear_attention", "chunked_attention")
_KINDS = (*_ATTENTION, "mamba", "conv", "recurrent", "attention", "full_attention")


def _by_source(module: ModuleType) -> Config:
    """Config values for the layer kinds and rope settings named in a family's source."""
    folder = getattr(module, "__path__", None)
    files = sorted(Path(folder[0]).glob("*.py")) if folder else [Path(module.__file__ or "")]
    source = "".join(file.read_text(errors="replace") for file in files)
    derived: Config = {}
    if '"mrope_section"' in source and "rope_scaling" in source:
        derived["rope_scaling"] = {"type": "default", "mrope_section": [2, 3, 3]}
    if "rope_parameters[" in source:
        rope = {
            "rope_theta": 10000.0,
            "rope_type": "default",
            "llama_4_scaling_beta": 0.1,
            "original_max_position_embeddings": 512,
            "type": "default",
            "partial_rotary_factor": 1.0,
            "mrope_section": [2, 3, 3],
        }
        derived["rope_parameters"] = {**rope, "full_attention": rope, "sliding_attention": rope}
    kinds = [kind for kind in _KINDS if f'"{kind}"' in source]
    if "full_attention" in kinds and "attention" in kinds:
        kinds.remove("attention")
    if kinds:
        derived["layer_types"] = [kinds[i % len(kinds)] for i in range(LAYERS)]
    if "sliding_attention" in kinds:
        derived["sliding_window"] = WINDOW
    return derived


def _inner_modules(module: ModuleType) -> list[ModuleType]:
    """The mlx-lm models that a wrapper model imports."""
    others = [one for one in vars(module).values() if isinstance(one, ModuleType)]
    return [one for one in others if one is not module and hasattr(one, "ModelArgs")]


def _text_classes(module: ModuleType) -> Iterator[tuple[ModuleType, type]]:
    """The config classes of the text models in a multimodal wrapper, each with its module."""
    for base in module.Model.__mro__[:2]:
        owner = importlib.import_module(base.__module__)
        names = ("TextConfig", "TextModelArgs", "TextArgs")
        yield from ((owner, getattr(owner, one)) for one in names if hasattr(owner, one))


def _shrunk_inner(module: ModuleType, config: Config) -> Config:
    inner = _inner_modules(module)
    # If a wrapper has several models, the config selects one.
    named = [one for one in inner if one.__name__.endswith(f".{config.get('model_type')}")]
    kinds = [one.ModelArgs for one in named or inner] or [one for _, one in _text_classes(module)]
    return shrink_config(config, kinds[0]) if kinds else config


def _nest_config(module: ModuleType, overrides: Config) -> Config:
    """The config of the text model inside a multimodal mlx-lm wrapper."""
    for inner in _inner_modules(module):
        name = inner.__name__.rpartition(".")[2]
        own = {"model_type": name, **_by_source(inner), **overrides_of("mlx-lm", name)}
        return {"text_config": small_config(inner.ModelArgs, own)}
    for owner, kind in _text_classes(module):
        own = {**_by_source(owner), **overrides.get("text_config", {})}
        return {"text_config": small_config(kind, own)}
    return {}


def _lm_model(
    family: Family, config: Config | None, overrides: Config, change: Edit, read: bool
) -> tuple[Any, Config]:
    module = family.module()
    args = module.ModelArgs
    names = inspect.signature(args).parameters
    derived = {"model_type": family.name, **_by_source(module), **overrides}
    derived.pop("text_config", None)
    derived |= _nest_config(module, overrides)
    if config is not None and "text_config" in names:
        # The release's from_dict wraps a text-only config like this.
        config = config if "text_config" in config else {"text_config": config, **config}
    if config is not None and isinstance(config.get("text_config"), dict):
        config = {**config, "text_config": _shrunk_inner(module, config["text_config"])}
    small = change(_config(args, config, derived))
    if read:
        return module.Model(args.from_dict(copy.deepcopy(small))), small
    # mlx-lm passes nested configs as dictionaries, which the model converts.
    made = args(**{name: value for name, value in small.items() if name in names})
    return module.Model(made), small


def _vlm_model(
    family: Family, config: Config | None, overrides: Config, change: Edit, read: bool
) -> tuple[Any, Config]:
    module = family.module()
    language = find(module, "LanguageModel")
    text, small = text_config(module, config, overrides, change, read)
    taken = inspect.signature(language.__init__).parameters
    required = [
        name
        for name, one in list(taken.items())[1:]
        if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD
    ]
    if len(required) < 2 and not ("config" in taken and required[:1] not in ([], ["config"])):
        return language(text), small
    whole_class = find(module, *_list_named(overrides, "whole-class"), "ModelConfig")
    whole = {"model_type": family.name, **overrides.get("whole", {})}
    whole = instance(whole_class, small_config(whole_class, whole))
    whole.text_config = text
    return language(text, whole), small


def text_config(
    module: ModuleType,
    config: Config | None,
    overrides: Config,
    change: Edit = dict,
    read: bool = False,
) -> tuple[Any, Config]:
    """The settings of an mlx-vlm language model, as an object and as a dictionary."""
    text_class = find(module, *_list_named(overrides, "config-class"), "TextConfig", "ModelConfig")
    given = (config or {}).get("text_config", config)
    small = _config(text_class, given, {**_by_source(module), **overrides})
    small = change(small)
    text = text_class.from_dict(copy.deepcopy(small)) if read else instance(text_class, small)
    if overrides.get("config-class") and "text_config" in small:
        inner_class = find(module, "TextConfig")
        inner = {**_by_source(module), **overrides.get("text_config", {})}
        text.text_config = instance(inner_class, _config(inner_class, given, inner))
    return text, small


def _list_named(overrides: Config, key: str) -> list[str]:
    return [overrides[key]] if key in overrides else []


def _config(cls: type, config: Config | None, overrides: Config) -> Config:
    return small_config(cls, overrides) if config is None else shrink_config(config, cls)


def find(module: ModuleType, *names: str) -> Any:
    """The first of these names that the package or one of its modules defines."""
    folder = Path(module.__path__[0]) if hasattr(module, "__path__") else None
    modules = [module]
    for file in sorted(folder.glob("*.py")) if folder else ():
        if file.stem in ("language", "config", module.__name__.rpartition(".")[2]):
            modules.append(importlib.import_module(f"{module.__name__}.{file.stem}"))
    for name in names:
        for candidate in modules:
            if hasattr(candidate, name):
                return getattr(candidate, name)
    raise NotBuilt(f"no {' or '.join(names)} in {module.__name__}")


def refuse_giants(model: Any) -> None:
    """Refuse a model that is too large before its lazy arrays are allocated."""
    from mlx.utils import tree_flatten

    count = sum(value.size for _, value in tree_flatten(model.parameters()))
    if count > MAX_PARAMETERS:
        raise NotBuilt(f"{count:,} parameters: some width was not made small")


def overrides_of(distribution: str, name: str) -> Config:
    """A family's overrides, layered over those of the mlx-lm family of the same name."""
    return {**OVERRIDES["mlx-lm"].get(name, {}), **OVERRIDES[distribution].get(name, {})}


def draw_weights(model: Any, seed: int) -> None:
    """Draw weights that make every token matter: unit gain, norms near 1, stable recurrences."""
    from mlx.utils import tree_map_with_path

    keys = iter(mx.random.split(mx.random.key(seed), 20_000))

    def draw(path: str, value: Any) -> Any:
        if value.dtype == mx.uint8:  # four ternary weights per byte
            codes = mx.random.randint(0, 3, (*value.shape, 4), key=next(keys))
            return (codes << mx.array([0, 2, 4, 6])).sum(-1).astype(mx.uint8)
        if not mx.issubdtype(value.dtype, mx.floating):
            return value
        noise = mx.random.normal(value.shape, key=next(keys))
        name = path.rpartition(".")[2]
        if name == "A_log":
            return mx.log(1 + mx.abs(noise))
        if name in ("dt_bias", "D") or "bias" in name:
            return 0.1 * noise + (1.0 if name == "D" else 0.0)
        if value.ndim < 2:
            return 1 + 0.1 * noise
        return noise * (2.0 / math.prod(value.shape[1:])) ** 0.5

    model.update(tree_map_with_path(draw, model.parameters()))
    model.eval()
    mx.eval(model.parameters())


def cast_weights(model: Any, dtype: str) -> None:
    """Cast the weights to a dtype, except those that the release's converter skips."""
    from mlx.utils import tree_map_with_path

    if dtype == FLOAT32:
        return
    kind, casts = getattr(mx, dtype), getattr(model, "cast_predicate", lambda path: True)

    def cast(path: str, value: Any) -> Any:
        change = mx.issubdtype(value.dtype, mx.floating) and casts(path)
        return value.astype(kind) if change else value

    model.update(tree_map_with_path(cast, model.parameters()))
    mx.eval(model.parameters())


def _make_cache(model: Any, family: Family) -> list[Any]:
    if hasattr(model, "make_cache"):
        return in_proportion(list(model.make_cache()))
    return list(family.part("models.cache").make_prompt_cache(model))


def in_proportion(caches: list[Any]) -> list[Any]:
    """The caches; buffers of chunked caches grow by less than a chunk, like in real models."""
    for layer in caches:
        if isinstance(getattr(layer, "chunk_size", None), int):
            layer.step = max(1, layer.chunk_size // 2)
    return caches


def _batch_cache(model: Any, family: Family, padding: Sequence[int]) -> list[Any]:
    """The caches of a left-padded batch, made by the release's engine."""
    for name in ("generate", "generate.ar"):
        make = getattr(import_optional(f"{family.package}.{name}"), "_make_cache", None)
        if make is not None:
            break
    else:
        raise NotApplicable("this release has no batch engine")
    required = [p for p in inspect.signature(make).parameters.values() if p.default is p.empty]
    arguments = [model, list(padding), *[None] * (len(required) - 2)]
    try:
        return in_proportion(list(make(*arguments)))
    except ValueError as error:
        raise NotApplicable(str(error)) from error


def _window(caches: Sequence[Any]) -> int | None:
    names = ("max_size", "chunk_size")
    sizes = (getattr(layer, name, None) for layer in layers(caches) for name in names)
    return min((size for size in sizes if isinstance(size, int)), default=None)
