"""Loads a folder that names a file outside of it: weights in its index, or a tokenizer's file."""

import json
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

from ....core.errors import is_refusal
from ....probes.kit import Result, Target, mx, require, require_module


class _OpenedError(Exception):
    """A weight file was opened; the argument is its path."""


def probe(target: Target) -> Result:
    """Red if the load opens the file."""
    load = require(target)
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent, "model")
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
        if target.distribution == "transformers":
            is_opened = _opens_tokenizer(folder)
        else:
            before = (None,) if "." in target.name else ()
            is_opened = _opens_weights(load, folder, before)
    return Result(is_opened, f"a file outside of the folder was {'' if is_opened else 'not '}read")


def write_weights(folder: Path, name: str) -> Path:
    """Write a folder whose weight index names a file, relative to the folder."""
    file = folder / name
    mx.save_safetensors(str(file), {"weight": mx.zeros((1,))})
    index = {"weight_map": {"weight": name}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return file


def _opens_weights(load: Any, folder: Path, before: tuple[Any, ...]) -> bool:
    file = write_weights(folder, "../outside.safetensors")
    stop = mock.Mock(side_effect=lambda path, *_, **__: _stop(path))
    with mock.patch("mlx.core.load", stop), mock.patch("safetensors.safe_open", stop):
        try:
            opened = load(*before, folder)
        except _OpenedError as error:
            opened = error.args
        except (FileNotFoundError, ValueError):  # no weights are in the folder, or a refusal
            opened = ()
    return file.resolve() in {Path(one).resolve() for one in opened}


def _stop(path: Any) -> None:
    raise _OpenedError(path)


def _opens_tokenizer(folder: Path) -> bool:
    transformers: Any = require_module("transformers")
    names = ["../tokenizer.4.0.0.json"]
    write_tokenizer(folder, folder / names[0], {"fast_tokenizer_files": names})
    try:
        return "outside" in transformers.AutoTokenizer.from_pretrained(folder).get_vocab()
    except ValueError as error:
        if is_refusal(error):
            return False
        raise


def write_tokenizer(folder: Path, outside: Path, names: dict[str, Any]) -> None:
    """Write a tokenizer's files in a folder and outside of it, and a config with these names."""
    for file, word in ((folder / "tokenizer.json", "inside"), (outside, "outside")):
        model = {"type": "WordLevel", "vocab": {word: 0}, "unk_token": word}
        file.write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": model}))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **names}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
