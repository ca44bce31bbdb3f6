"""Calls vllm-mlx's loader on a model's folder, with mlx-lm's own loading mocked."""

from __future__ import annotations

import importlib
import tempfile
from unittest import mock

from ....core.patch import Target
from ....probes import Result


def probe(target: Target) -> Result:
    """Red if the loader does not return the model that mlx-lm loaded."""
    load = getattr(importlib.import_module(target.module), target.name)
    pair = object(), object()
    with mock.patch("mlx_lm.load", return_value=pair), tempfile.TemporaryDirectory() as folder:
        got = load(folder)
    return Result(got is None, f"the loader returns {'nothing' if got is None else 'a model'}")
