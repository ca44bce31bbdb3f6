"""Has vllm-mlx load a model's folder, the loading itself being mlx-lm's and left out."""

from __future__ import annotations

import importlib
import tempfile
from unittest import mock

from ..core.patch import Target
from . import Result


def probe(target: Target) -> Result:
    """Red where the host's callers do not get what mlx-lm loaded."""
    load = getattr(importlib.import_module(target.module), target.name)
    pair = object(), object()
    with mock.patch("mlx_lm.load", return_value=pair), tempfile.TemporaryDirectory() as folder:
        got = load(folder)
    return Result(got is None, f"the loader returns {'nothing' if got is None else 'a model'}")
