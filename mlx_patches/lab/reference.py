"""The scenario ``reference``: compares a family's logits with transformers on the same weights.

The other scenarios compare a release with itself, so they miss what is wrong for single requests.
Here transformers makes a tiny model of random weights and saves it as a user's folder. The release
loads the folder with its own loader, and both compute the logits of one prompt. Each family is
compared in several configs; needs the extra ``reference``.
"""

import copy
import importlib.util
import itertools
import json
import math
import os
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.arrays import mx
from ..core.errors import MlxPatchesError
from ..core.model_files import WINDOWS
from ..core.model_types import remapping
from ..evidence.outside import OLD, PLAIN, THETA, WINDOW
from ..evidence.results import find_fault
from ..evidence.words import GREEN, NOT_APPLICABLE, NOT_RUN, RED, RESULTS
from . import EXACT, Cell, Family, LabModel, NotBuilt, engine
from .offline import shell
from .shrink import FACTORS, rope_width, shrink_values
from .shrink import WINDOW as SHORT
from .whole import embed_prompt

NAME = "reference"
EXTRA = ("torch", "torchvision", "transformers")
# The number of prompt tokens, and how many of them are fed one by one after a prefill.
TOKENS, DECODED = 40, 8
DATA: dict[str, Any] = tomllib.loads((Path(__file__).parent / "reference.toml").read_text())

Config = dict[str, Any]
# The logits of the vocabulary, one row per token.
Logits = list[list[float]]


class Refused(Exception):
    """Transformers refuses the config; the message is the reason in one line."""


def check() -> None:
    """Raise MlxPatchesError if the packages of the extra are not installed."""
    missing = [name for name in EXTRA if importlib.util.find_spec(name) is None]
    if missing:
        raise MlxPatchesError(
            f"--reference needs {', '.join(missing)}, which this environment lacks: install"
            " the extra with pip install 'mlx-patches[reference]'"
        )


def cells(family: Family) -> Iterator[tuple[str, Cell]]:
    """Yield a name and a cell for each config of a family, then one for all of them."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    models = remapping(f"{family.package}.models")
    others = [kind for kind, name in models.items() if name == family.name]
    kinds = list(dict.fromkeys((family.name, *others)))
    kinds = [kind for kind in kinds if kind in transformers.CONFIG_MAPPING]
    outside = f"transformers {transformers.__version__}"
    if not kinds:
        yield NAME, Cell(NOT_APPLICABLE, f"{outside} has no model type {family.name}")
        return
    found = []
    for kind in kinds:
        why = DATA["not-held"].get(kind)
        own = [(PLAIN, Cell(NOT_APPLICABLE, why))] if why else _cells(family, kind)
        for name, cell in own:
            found.append(cell)
            yield f"{NAME}:{name if kind == family.name else f'{kind} {name}'}", cell
    yield NAME, summary(found, outside)


def summary(found: Sequence[Cell], outside: str) -> Cell:
    """The worst cell's verdict, the largest figure, and the number of configs by verdict."""
    worst = min((cell.verdict for cell in found), key=RESULTS.index)
    counts = [(verdict, sum(cell.verdict == verdict for cell in found)) for verdict in RESULTS]
    detail = ", ".join(f"{count} {verdict}" for verdict, count in counts if count)
    return Cell(
        worst, f"against {outside}: {detail}", max((c.figure or 0.0 for c in found), default=None)
    )


def _cells(family: Family, kind: str) -> Iterator[tuple[str, Cell]]:
    """The cells of one model type; if its plain config is wrong, the others are skipped."""
    right: list[bool] = []
    seen: list[Logits] = []
    for old in (False, True)[: 1 if kind in DATA["new"] else 2]:
        try:
            plain = _small(kind)
            cell, want = _compare_config(family, kind, plain, old)
        except Refused as reason:
            if old:
                break
            yield PLAIN, Cell(NOT_APPLICABLE, f"transformers refuses it: {reason}")
            return
        yield PLAIN + OLD * old, cell
        right += [old] * (cell.verdict == GREEN)
        seen = [want]
    for name, config in configs(plain):
        rope = name in (THETA, *DATA["ropes"])
        for old in right if rope else right[-1:]:
            try:
                cell, want = _compare_config(family, kind, config, old)
            except Refused:
                continue
            # A config that does not change transformers' logits proves nothing.
            if not any(max(_distances(want, one)) < 1e-6 for one in seen):
                yield name + OLD * (old and rope), cell
        seen.append(want)


def configs(plain: Config) -> Iterator[tuple[str, Config]]:
    """The other configs in which a family is compared, made from its small one.

    Most change a single field, so that an ignored field has a separate cell.
    """
    text = plain.get("text_config") or plain
    if ropes := text.get("rope_parameters"):
        yield THETA, _with(plain, rope_parameters=other_theta(ropes))
        yield from ((name, _scale_rope(plain, rope)) for name, rope in DATA["ropes"].items())
    if windows := _windows(text):
        yield WINDOW, _with(plain, **dict.fromkeys(windows, SHORT), use_sliding_window=True)
    for name, value in text.items():
        if (other := _other(name, value)) is not None:
            yield f"{name}={json.dumps(other)}", _with(plain, **{name: other})


def _windows(config: Mapping[str, Any]) -> list[str]:
    return [name for name in config if name in WINDOWS]


def _scale_rope(config: Config, rope: Mapping[str, Any]) -> Config:
    """The config with another rope type; layers with a window keep theirs."""
    if isinstance(inner := config.get("text_config"), dict):
        return {**config, "text_config": _scale_rope(inner, rope)}
    old = config["rope_parameters"]
    own = old.get("full_attention", old)
    pairs = int(rope_width(config) * (own.get("partial_rotary_factor") or 1.0)) // 2
    new = {**own, **rope}
    for name in FACTORS & rope.keys():  # one factor per pair of rotated dimensions
        new[name] = [rope[name] * (1 + pair / pairs) for pair in range(pairs)]
    changed = {**config, "rope_parameters": {**old, "full_attention": new} if own != old else new}
    if original := rope.get("original_max_position_embeddings"):
        changed["max_position_embeddings"] = int(original * rope["factor"])
        if "original_max_position_embeddings" in config:
            changed["original_max_position_embeddings"] = original
    return changed


def _other(name: str, value: Any) -> Any:
    """Another value for a switch or a factor; None for other fields."""
    if any(part in name for part in DATA["no-setting"]):
        return None
    if "softcap" in name:
        return DATA["softcap"]
    if isinstance(value, bool):
        return not value
    return value / 2 if isinstance(value, float) and value else None


def _with(config: Config, **fields: Any) -> Config:
    """The config with the given fields changed in the text model's config, if it has them."""
    if isinstance(inner := config.get("text_config"), dict):
        return {**config, "text_config": _with(inner, **fields)}
    return {**config, **{name: value for name, value in fields.items() if name in config}}


def _small(kind: str) -> Config:
    """Transformers' default config of a model type, made small."""
    from transformers import CONFIG_MAPPING

    try:
        base = CONFIG_MAPPING[kind]()
        text = base.get_text_config()
        names = {own: name for name, own in text.attribute_map.items()}
        small = shrink_values(base.to_dict(), names)
        inner = small.get("text_config", small)
        for name in DATA["derived"]:
            inner.pop(name, None)
    except Exception as error:
        raise Refused(engine.where(error)) from error
    own = text.to_dict()
    inner.update({name: own[name] for name in _windows(own)})
    if inner.get("kv_lora_rank"):  # latent attention has no head groups
        inner["num_key_value_heads"] = inner["num_attention_heads"]
    fields = copy.deepcopy(DATA["families"].get(kind, {}))
    merge(small, fields.pop("whole", {}))
    merge(inner, fields)
    return dict(small)


def merge(config: Config, fields: Mapping[str, Any]) -> None:
    """Change fields of a config, also in its parts."""
    for name, value in fields.items():
        if isinstance(value, dict) and isinstance(config.get(name), dict):
            merge(config[name], value)
        else:
            config[name] = value


def other_theta(ropes: Config) -> Config:
    """The rope settings with a theta that is nobody's default, so that it has to be read."""
    return {
        name: other_theta(value)
        if isinstance(value, dict)
        else (2 * value if name == "rope_theta" else value)
        for name, value in ropes.items()
    }


def _compare_config(family: Family, kind: str, config: Config, old: bool) -> tuple[Cell, Logits]:
    """The cell of one config, and transformers' logits; Refused if it makes no model of it."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            made, want = _save_model(kind, config, Path(folder))
            if old:
                _respell(Path(folder), made)
        except Exception as error:
            raise Refused(engine.where(error)) from error
        return _cell(family, Path(folder), want), want


def _save_model(kind: str, config: Config, folder: Path) -> tuple[Any, Logits]:
    import torch
    from transformers import CONFIG_MAPPING
    from transformers import AutoModelForCausalLM as Texts
    from transformers import AutoModelForImageTextToText as Images

    made = CONFIG_MAPPING[kind](**copy.deepcopy(config))
    torch.manual_seed(0)
    auto = Images if type(made) in Images._model_mapping else Texts
    model = auto.from_config(made, attn_implementation="eager").float().eval()
    with torch.no_grad():
        for value in model.state_dict().values():
            if value.is_floating_point() and value.ndim >= 2:
                value.normal_(0, value.shape[-1] ** -0.5)
            elif value.is_floating_point():
                value.add_(torch.randn_like(value) * 0.1)
        want = model(torch.tensor([prompt()]), use_cache=False).logits[0].tolist()
    model.save_pretrained(folder, save_original_format=kind not in DATA["own-names"])
    if kind in DATA["vision-model"]:
        _prefix_vision(folder / "model.safetensors")
    return made, want


def _prefix_vision(path: Path) -> None:
    """Name the weights of the vision tower like published folders do.

    Transformers restores these names only in models that it loaded, and it made this one.
    """
    old, new = "vision_tower.", "vision_tower.vision_model."
    weights = {name.replace(old, new): value for name, value in mx.load(str(path)).items()}
    mx.eval(weights)  # read the file now, since it is overwritten next
    mx.save_safetensors(str(path), weights, {"format": "pt"})


def _respell(folder: Path, made: Any) -> None:
    """Spell a saved config like published folders do; transformers must read it the same."""
    from transformers import AutoConfig

    path, text = folder / "config.json", made.get_text_config()
    saved = json.loads(path.read_text())
    for spelled in (old_rope(saved), copy.deepcopy(saved)):
        inner = spelled.get("text_config", spelled)
        names = {**text.attribute_map, **DATA["aliases"].get(made.model_type, {})}
        for name, own in names.items():
            if own in inner:
                inner.setdefault(name, inner[own])
        merge(spelled, DATA["released"].get(made.model_type, {}))
        path.write_text(json.dumps(spelled))
        if spelled != saved and _rope(AutoConfig.from_pretrained(folder)) == _rope(made):
            return
    raise ValueError("there is one spelling")


def _rope(config: Any) -> Config:
    rope = getattr(config.get_text_config(), "rope_parameters", None) or {}
    return {name: value for name, value in rope.items() if not name.endswith("type")}


def prompt() -> list[int]:
    """The token ids of the prompt; the small configs' special tokens are below them."""
    return [3 + (5 * place * place + 7 * place) % 89 for place in range(TOKENS)]


def old_rope(config: Config) -> Config:
    """A saved config with its rope settings in the spelling of transformers 4."""
    config = {
        name: old_rope(value) if name == "text_config" else value for name, value in config.items()
    }
    ropes = config.pop("rope_parameters", None)
    if ropes is None:
        return config
    if isinstance(local := ropes.get("sliding_attention"), dict):
        config["rope_local_base_freq"] = local["rope_theta"]
        ropes = ropes["full_attention"]
    rope = dict(ropes)
    for name in ("rope_theta", "partial_rotary_factor"):
        if name in rope:
            config[name] = rope.pop(name)
    kind = rope.pop("rope_type", "default")
    if kind == "default" and "mrope_section" in rope:
        kind = "mrope"
    config["rope_scaling"] = {**rope, "type": kind, "rope_type": kind} if rope else None
    if kind == "longrope":  # published folders have it in the config itself
        config["original_max_position_embeddings"] = rope["original_max_position_embeddings"]
    return config


def _cell(family: Family, folder: Path, want: Logits) -> Cell:
    """Compare the release's logits of a saved folder: the whole prompt at once, and decoded."""
    from .weights import load

    try:
        model = load(family, folder)
    except NotBuilt as error:
        if fault := find_fault(error):
            return Cell(NOT_RUN, fault)
        cause = error.__cause__ or error
        text = " ".join(str(cause).split())[:200]  # the names of weights are in later lines
        return Cell(RED, f"does not load: {type(cause).__name__}: {text}")
    tokens, start = prompt(), TOKENS - DECODED
    try:
        embedding = _embedding(model)
        whole = model.call([tokens], model.make_cache(), **embedding(tokens))[0].tolist()
        cache = model.make_cache()
        decoded = model.call([tokens[:start]], cache, **embedding(tokens[:start]))[0].tolist()
        for token in tokens[start:]:
            decoded += model.call([[token]], cache)[0].tolist()
    except Exception as error:
        return engine.judge_error(error)
    return compare(want, {"": whole, "a decode after a prefill is ": decoded})


def _embedding(model: LabModel) -> Callable[[list[int]], dict[str, Any]]:
    """A function for what the release passes with a prompt: in mlx-vlm also the embeddings."""
    whole = shell(model) if model.family.distribution == "mlx-vlm" else None
    return lambda tokens: embed_prompt(whole, tokens, {}) if whole is not None else {}


def compare(want: Logits, seen: Mapping[str, Logits]) -> Cell:
    """Compare logits of a prompt, by description, with the reference's."""
    scale, worst = max(abs(value) for row in want for value in row), 0.0
    for what, got in seen.items():
        off = [distance / scale for distance in _distances(want, got)]
        worst = max(worst, *off)
        if worst > EXACT.logits:
            first = next(token for token, value in enumerate(off) if value > EXACT.logits)
            detail = f"{what}off by {worst:.2g} of the scale, first at token {first}"
            return Cell(RED, detail, worst)
    return Cell(GREEN, "equal", worst)


def _distances(want: Logits, got: Logits) -> list[float]:
    """The largest difference at each token; infinite if a number is missing or not finite."""

    def distance(one: float, other: float) -> float:
        return abs(one - other) if math.isfinite(other) else math.inf

    none: list[float] = []
    pairs = itertools.zip_longest(want, got, fillvalue=none)
    return [
        max(distance(one, other) for one, other in zip(row, own, strict=False))
        if len(own) >= len(row) > 0
        else math.inf
        for row, own in pairs
    ]
