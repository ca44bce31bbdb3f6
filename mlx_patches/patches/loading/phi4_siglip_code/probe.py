"""Loads a folder's processor as hosts do, and records the arguments of the tokenizer's load."""

from __future__ import annotations

import importlib
import tempfile
from typing import Any

from ....core.patch import Target
from ....probes import Result


class _Asked(Exception):
    """Raised in place of loading the tokenizer."""


def probe(target: Target) -> Result:
    """Red where the tokenizer is loaded with permission to run the folder's code."""
    import transformers

    name, _, method = target.name.partition(".")
    load = getattr(getattr(importlib.import_module(target.module), name), method)
    asked: list[dict[str, Any]] = []

    def noted(path: Any, **kwargs: Any) -> Any:
        asked.append(kwargs)
        raise _Asked

    kept = transformers.AutoTokenizer.from_pretrained
    transformers.AutoTokenizer.from_pretrained = noted
    try:
        with tempfile.TemporaryDirectory() as folder:
            load(folder, trust_remote_code=True)
    except _Asked:
        pass
    finally:
        transformers.AutoTokenizer.from_pretrained = kept
    trusted = bool(asked[-1].get("trust_remote_code"))
    return Result(trusted, f"the tokenizer is {'' if trusted else 'not '}allowed to run code")
