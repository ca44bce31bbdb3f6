"""Generates with ``kv_bits``, by models that support quantized caches and models that do not."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from unittest import mock

from ....core.patch import Target
from ....probes import NotApplicable, Result
from ....probes.batch_invariance import tiny
from ....probes.fixtures import require_own

_PROMPT = [5, 9, 2, 7]
_TOKENS = 6
_BITS = {"kv_bits": 8, "kv_group_size": 32, "quantized_kv_start": 2}
_READS, _REFUSES = "qwen3", ("gemma2", "phi")
# Families of mlx-vlm; the first that a release has is tried, in a batch or alone.
_VLM_READS = "qwen2_5_vl"
_VLM_REFUSES, _ALONE_REFUSES = ("gemma4", "falcon_ocr"), ("falcon_ocr", "gemma3")
# Its own caches drop tokens of an answer, which quantized ones would keep.
_VLM_DROPS = "unlimited_ocr"


def probe(target: Target) -> Result:
    """Red where a model raises, or one that supports quantized caches gets none."""
    if target.distribution == "mlx-vlm":
        return probe_vlm(target)
    step = getattr(importlib.import_module(target.module), target.name)
    models = 2 if target.name.startswith("speculative") else 1
    for name in _REFUSES:
        model = tiny("mlx-lm", name).module
        try:
            said = answer(step, [model] * models)
        except Exception as error:
            return Result(True, f"{name}: {type(error).__name__}: {error}".splitlines()[0])
        if len(said) != _TOKENS:
            return Result(True, f"{name}: {len(said)} tokens, not {_TOKENS}")
    with counted("mlx_lm", "QuantizedKVCache") as quantized:
        answer(step, [tiny("mlx-lm", _READS).module] * models)
    if not any(length > 1 for length in quantized):  # length 1: the patch's own trial
        return Result(True, f"the cache of {_READS} is not quantized")
    return Result(False, f"{', '.join(_REFUSES)} keep float caches, {_READS} quantizes its own")


def probe_vlm(target: Target) -> Result:
    """Red where a model of mlx-vlm raises, or one that supports quantized caches gets none."""
    require_own(target)
    own = getattr(importlib.import_module(target.module), target.name.partition(".")[0])
    if "kv_bits" not in inspect.signature(own).parameters:
        return Result(False, "this release's batches have no quantized caches")
    in_batch = inspect.isclass(own)
    answered = answer_in_batch if in_batch else answer_alone
    refusing = first_built(_VLM_REFUSES if in_batch else _ALONE_REFUSES)
    reading = tiny("mlx-vlm", _VLM_READS)
    try:
        said = answered(refusing)
    except NotApplicable:
        raise
    except Exception as error:
        return Result(True, f"{refusing.family}: {type(error).__name__}: {error}".splitlines()[0])
    if said != _TOKENS:
        return Result(True, f"{refusing.family}: {said} tokens, not {_TOKENS}")
    if not is_quantized(answered, reading):
        return Result(True, f"the cache of {reading.family} is not quantized")
    with suppress(NotApplicable):
        if is_quantized(answered, tiny("mlx-vlm", _VLM_DROPS)):
            return Result(True, f"the cache of {_VLM_DROPS} keeps what it should drop")
    return Result(
        False, f"{refusing.family} keeps float caches, {reading.family} quantizes its own"
    )


def first_built(names: Sequence[str]) -> Any:
    """The lab's model of the first of these families that the release has."""
    for name in names:
        try:
            return tiny("mlx-vlm", name)
        except NotApplicable:
            continue
    raise NotApplicable(f"this release has none of {', '.join(names)}")


def is_quantized(answered: Callable[[Any], int], model: Any) -> bool:
    """Whether a prompt is read with quantized caches."""
    name = "BatchQuantizedKVCache" if answered is answer_in_batch else "QuantizedKVCache"
    # Older releases of mlx-vlm quantize with mlx-lm's.
    caches = importlib.import_module("mlx_vlm.models.cache")
    with counted("mlx_vlm" if hasattr(caches, name) else "mlx_lm", name) as quantized:
        answered(model)
    return any(length > 1 for length in quantized)  # length 1: the patch's own trial


def answer_in_batch(model: Any) -> int:
    """How many tokens the release's batch generator gives."""
    from ....lab import generators

    options = {"kv_bits": 8, "kv_group_size": 32}
    request = generators.Request(0, _PROMPT, _TOKENS)
    (said,) = generators.run_requests(model, [request], **options)
    return len(said)


def answer_alone(model: Any) -> int:
    """How many tokens the release's ``generate_step`` gives for a prompt without an image."""
    import mlx.core as mx

    from ....lab import engine
    from ....lab.alone_scenarios import inputs_of, whole_model

    step = engine.generate_module(model).generate_step
    prompt = mx.array([_PROMPT])
    options = {**inputs_of(prompt, None), "max_tokens": _TOKENS, **_BITS}
    return sum(1 for _ in step(prompt, whole_model(model, None), **options))


def answer(step: Any, models: Sequence[Any]) -> list[int]:
    """Generate tokens; in speculative decoding the model is also its own draft model."""
    import mlx.core as mx

    steps = step(mx.array(_PROMPT), *models, max_tokens=_TOKENS, **_BITS)
    return [int(one[0]) for one in steps]


@contextmanager
def counted(package: str, name: str) -> Iterator[list[int]]:
    """Record the number of columns of each quantized cache at each of its updates."""
    kind = getattr(importlib.import_module(f"{package}.models.cache"), name)
    update, given = kind.update_and_fetch, []

    def noted(cache: Any, keys: Any, values: Any) -> Any:
        given.append(int(getattr(cache, "_idx", cache.offset)))
        return update(cache, keys, values)

    with mock.patch.object(kind, "update_and_fetch", noted):
        yield given
