"""Generates with ``kv_bits``, by models that support quantized caches and models that do not."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any
from unittest import mock

from ....core.packages import package_of
from ....core.patch import Target
from ....probes import NotApplicable, Result
from ....probes.batch_invariance import tiny
from ....probes.fixtures import require_own

_PROMPT = [5, 9, 2, 7]
_TOKENS = 6
_BITS = {"kv_bits": 8, "kv_group_size": 32, "quantized_kv_start": 2}
# Families that read quantized caches, and that do not; in mlx-vlm the first of the latter that a
# release has is tried, in a batch or alone.
_READS = {"mlx-lm": "qwen3", "mlx-vlm": "qwen2_5_vl"}
_LM_REFUSES = ("gemma2", "phi")
_BATCH_REFUSES, _ALONE_REFUSES = ("gemma4", "falcon_ocr"), ("falcon_ocr", "gemma3")
# Its own caches drop tokens of an answer, which quantized ones would keep.
_VLM_DROPS = "unlimited_ocr"


def probe(target: Target) -> Result:
    """Red where a model raises, or one that supports quantized caches gets none."""
    require_own(target)
    own = getattr(importlib.import_module(target.module), target.name.partition(".")[0])
    if "kv_bits" not in inspect.signature(own).parameters:
        return Result(False, "this release's batches have no quantized caches")
    answered: Callable[[Any], int]
    refusing: Iterable[Any]
    if target.distribution == "mlx-lm":
        answered = partial(answer, own)
        refusing = (tiny("mlx-lm", name) for name in _LM_REFUSES)
    elif inspect.isclass(own):
        answered, refusing = answer_in_batch, [first_built(_BATCH_REFUSES)]
    else:
        answered, refusing = answer_alone, [first_built(_ALONE_REFUSES)]
    for model in refusing:
        try:
            said = answered(model)
        except NotApplicable:
            raise
        except Exception as error:
            return Result(True, f"{model.family}: {type(error).__name__}: {error}".splitlines()[0])
        if said != _TOKENS:
            return Result(True, f"{model.family}: {said} tokens, not {_TOKENS}")
    reading = tiny(target.distribution, _READS[target.distribution])
    if not is_quantized(answered, reading):
        return Result(True, f"the cache of {reading.family} is not quantized")
    if target.distribution == "mlx-vlm":
        with suppress(NotApplicable):
            if is_quantized(answered, tiny("mlx-vlm", _VLM_DROPS)):
                return Result(True, f"the cache of {_VLM_DROPS} keeps what it should drop")
    return Result(False, f"{model.family} keeps float caches, {reading.family} quantizes its own")


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
    own = importlib.import_module(f"{package_of(model.family.distribution)}.models.cache")
    # Older releases of mlx-vlm quantize with mlx-lm's.
    caches = own if hasattr(own, name) else importlib.import_module("mlx_lm.models.cache")
    with counted(getattr(caches, name)) as quantized:
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


def answer(step: Any, model: Any) -> int:
    """How many tokens mlx-lm gives; in speculative decoding the model is its own draft model."""
    import mlx.core as mx

    drafts = [model.module] if "draft_model" in inspect.signature(step).parameters else []
    steps = step(mx.array(_PROMPT), model.module, *drafts, max_tokens=_TOKENS, **_BITS)
    return sum(1 for _ in steps)


@contextmanager
def counted(kind: Any) -> Iterator[list[int]]:
    """Record the number of columns of each cache of a class at each of its updates."""
    update, given = kind.update_and_fetch, []

    def noted(cache: Any, keys: Any, values: Any) -> Any:
        given.append(int(getattr(cache, "_idx", cache.offset)))
        return update(cache, keys, values)

    with mock.patch.object(kind, "update_and_fetch", noted):
        yield given
