"""Generates with ``kv_bits``, by models that support quantized caches and models that do not."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any
from unittest import mock

from ....core.packages import package_of
from ....probes.kit import NotApplicable, Result, Target, import_module, mx, own_module, tiny

_PROMPT = [5, 9, 2, 7]
_TOKENS = 6
_BITS = {"kv_bits": 8, "kv_group_size": 32, "quantized_kv_start": 2}
# Families that support quantized caches, and that do not; in mlx-vlm the first of the latter that
# a release has is tried, in a batch or as a single request.
_SUPPORTED = {"mlx-lm": "qwen3", "mlx-vlm": "qwen2_5_vl"}
_BATCH_UNSUPPORTED, _SOLO_UNSUPPORTED = ("gemma4", "falcon_ocr"), ("falcon_ocr", "gemma3")
# Its own caches drop tokens of an answer, which quantized ones would keep.
_DROPS_TOKENS = "unlimited_ocr"


def probe(target: Target) -> Result:
    """Red if a model raises, or one that supports quantized caches gets none."""
    own = getattr(own_module(target), target.name.partition(".")[0])
    if "kv_bits" not in inspect.signature(own).parameters:
        return Result(False, "this release's batches have no quantized caches")
    generate: Callable[[Any], int]
    unsupported: Iterable[Any]
    if target.distribution == "mlx-lm":
        generate = partial(generate_lm, own)
        unsupported = (tiny("mlx-lm", name) for name in ("gemma2", "phi"))
    elif inspect.isclass(own):
        generate, unsupported = generate_batch, [build_first(_BATCH_UNSUPPORTED)]
    else:
        generate, unsupported = generate_solo, [build_first(_SOLO_UNSUPPORTED)]
    for model in unsupported:
        try:
            count = generate(model)
        except NotApplicable:
            raise
        except Exception as error:
            return Result(True, f"{model.family}: {type(error).__name__}: {error}".splitlines()[0])
        if count != _TOKENS:
            return Result(True, f"{model.family}: {count} tokens, not {_TOKENS}")
    supported = tiny(target.distribution, _SUPPORTED[target.distribution])
    if not is_quantized(generate, supported):
        return Result(True, f"the cache of {supported.family} is not quantized")
    if target.distribution == "mlx-vlm":
        with suppress(NotApplicable):
            if is_quantized(generate, tiny("mlx-vlm", _DROPS_TOKENS)):
                return Result(True, f"the cache of {_DROPS_TOKENS} keeps what it should drop")
    return Result(False, f"{model.family} keeps float caches, {supported.family} quantizes its own")


def build_first(names: Sequence[str]) -> Any:
    """Build the lab's model of the first of these families that the release has."""
    for name in names:
        try:
            return tiny("mlx-vlm", name)
        except NotApplicable:
            continue
    raise NotApplicable(f"this release has none of {', '.join(names)}")


def is_quantized(generate: Callable[[Any], int], model: Any) -> bool:
    name = "BatchQuantizedKVCache" if generate is generate_batch else "QuantizedKVCache"
    own = import_module(f"{package_of(model.family.distribution)}.models.cache")
    # Older releases of mlx-vlm quantize with mlx-lm's.
    caches = own if hasattr(own, name) else import_module("mlx_lm.models.cache")
    with record_lengths(getattr(caches, name)) as quantized:
        generate(model)
    return any(length > 1 for length in quantized)  # length 1: the patch's own trial


def generate_batch(model: Any) -> int:
    from ....lab import generators

    options = {"kv_bits": 8, "kv_group_size": 32}
    request = generators.Request(0, _PROMPT, _TOKENS)
    (tokens,) = generators.run_requests(model, [request], **options)
    return len(tokens)


def generate_solo(model: Any) -> int:
    """How many tokens the release's ``generate_step`` yields for a prompt without an image."""
    from ....lab import engine
    from ....lab.solo_scenarios import inputs_of, whole_model

    step = engine.generate_module(model).generate_step
    prompt = mx.array([_PROMPT])
    options = {**inputs_of(prompt, None), "max_tokens": _TOKENS, **_BITS}
    return sum(1 for _ in step(prompt, whole_model(model, None), **options))


def generate_lm(step: Any, model: Any) -> int:
    """How many tokens mlx-lm yields; in speculative decoding the model is its own draft model."""
    drafts = [model.module] if "draft_model" in inspect.signature(step).parameters else []
    steps = step(mx.array(_PROMPT), model.module, *drafts, max_tokens=_TOKENS, **_BITS)
    return sum(1 for _ in steps)


@contextmanager
def record_lengths(kind: Any) -> Iterator[list[int]]:
    update, lengths = kind.update_and_fetch, []

    def record(cache: Any, keys: Any, values: Any) -> Any:
        lengths.append(int(getattr(cache, "_idx", cache.offset)))
        return update(cache, keys, values)

    with mock.patch.object(kind, "update_and_fetch", record):
        yield lengths
