"""Loads a tiny model's folder with the release's own loader, and reads its stop tokens."""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from ....probes.kit import Result, Target, import_module, module_of, mx, require
from ....probes.stop_folder import IN_CONFIG, IN_GENERATION, IN_TEXT_CONFIG, OWN, TINY, write_folder


def probe(target: Target) -> Result:
    """Red if a stop token that the folder or the tokenizer names is not used."""
    require(target)
    with tempfile.TemporaryDirectory() as folder:
        write_folder(Path(folder))
        seen, wanted = _LOADED[target.name](target, Path(folder))
    missing = sorted(wanted - set(seen))
    if missing:
        return Result(True, f"stop tokens {missing} are dropped")
    return Result(False, f"stop tokens {sorted(wanted)} are all used")


def _mlx_lm(target: Target, folder: Path) -> tuple[list[int], set[int]]:
    utils = import_module("mlx_lm.utils")
    config = utils.load_config(folder)
    tokenizer = utils.load_tokenizer(folder, {}, eos_token_ids=config.get("eos_token_id"))
    return list(tokenizer.eos_token_ids), {OWN, IN_CONFIG, IN_TEXT_CONFIG, *IN_GENERATION}


def _mlx_vlm_model(target: Target, folder: Path) -> tuple[list[int], set[int]]:
    mx.save_safetensors(
        str(folder / "model.safetensors"), {"weight": mx.zeros((1,))}, {"format": "mlx"}
    )
    with _tiny_family():
        model = module_of(target).load_model(folder)
    ids = model.config.eos_token_id
    return ids if isinstance(ids, list) else [ids], {IN_CONFIG, IN_TEXT_CONFIG, *IN_GENERATION}


def _mlx_vlm_criteria(target: Target, folder: Path) -> tuple[list[int], set[int]]:
    """Create, or reset, the stop criteria with the config's ids; the tokenizer adds its own id."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    config_ids = [IN_CONFIG]
    criteria_class = module_of(target).StoppingCriteria
    if target.name.endswith("reset"):
        criteria = criteria_class([IN_TEXT_CONFIG], tokenizer)
        criteria.reset(config_ids)
    else:
        criteria = criteria_class(config_ids, tokenizer)
    criteria.eos_token_ids.append(IN_GENERATION[-1])  # as add_eos_token_ids does
    aliased = config_ids != [IN_CONFIG]
    return [] if aliased else criteria.eos_token_ids, {OWN, IN_CONFIG}


_LOADED = {
    "load": _mlx_lm,
    "load_tokenizer": _mlx_lm,
    "load_model": _mlx_vlm_model,
    "StoppingCriteria.__init__": _mlx_vlm_criteria,
    "StoppingCriteria.reset": _mlx_vlm_criteria,
}


@contextmanager
def _tiny_family() -> Iterator[None]:
    """Register a one-weight model family that the release's loader finds by its model type."""
    import mlx.nn as nn

    class Config(SimpleNamespace):
        eos_token_id: Any = None

        @classmethod
        def from_dict(cls, values: dict[str, Any]) -> Any:
            return cls(**values)

    class Model(nn.Module):  # type: ignore[misc]
        def __init__(self, config: Config):
            super().__init__()
            self.weight = mx.zeros((1,))
            self.config = config

    name = f"mlx_vlm.models.{TINY}"
    module = ModuleType(name)
    for part in ("Model", "Text", "Vision", "Audio", "Projector", "Perceiver"):
        setattr(module, f"{part}Config", Config)
    for part in ("Model", "VisionModel", "LanguageModel"):
        setattr(module, part, Model)
    sys.modules[name] = module
    try:
        yield
    finally:
        del sys.modules[name]
