"""Calls vllm-mlx's loader on a model's folder, with mlx-lm's own loading mocked."""

import tempfile
from unittest import mock

from ....probes.kit import Result, Target, module_of


def probe(target: Target) -> Result:
    """Red if the loader does not return the model that mlx-lm loaded."""
    load = getattr(module_of(target), target.name)
    pair = object(), object()
    with mock.patch("mlx_lm.load", return_value=pair), tempfile.TemporaryDirectory() as folder:
        got = load(folder)
    return Result(got is None, f"the loader returns {'nothing' if got is None else 'a model'}")
