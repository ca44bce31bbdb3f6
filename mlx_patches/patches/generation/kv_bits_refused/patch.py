"""mlx-lm and mlx-vlm: kv_bits crashes mid-generation on unsupported models; now ignored with a
warning.

Why: ``kv_bits`` quantizes the caches of any model once a text is long enough; mlx-vlm's batches
    have quantized caches from the start. Gemma 2 and 4, Phi, DeepSeek V3 and others compute with
    the keys and values themselves, which are tuples of arrays in a quantized cache; gpt-oss uses
    attention sinks, which quantized attention rejects. Unlimited OCR's caches drop its older answer
    tokens, and the quantized ones that replace them keep them.
How: Each model is tried once before generation: it is fed a token with quantized caches. MLX is
    lazy, so nothing is computed, but an unsupported operation raises at once. If it does,
    ``kv_bits`` is ignored, with one warning per model class. It is also ignored for models whose
    own caches drop tokens of an answer; releases do not quantize other caches that drop tokens.
Upstream: Not fixed in mlx-lm 0.32.2 and mlx-vlm 0.7.10.
Retire when: The release rejects ``kv_bits`` before it generates, or every family supports quantized
    caches.
"""

import inspect
import logging
import sys
from functools import cache
from typing import Any

from ....core.verbs import Function, Patch, argument, around, define, mx
from ..._shared.kept import Kept
from ..._shared.targets import vlm_generators

logger = logging.getLogger("mlx_patches")

# The arguments of mlx-vlm that select quantized caches; without them caches hold floats.
_BITS = ("kv_bits", "kv_key_bits", "kv_value_bits", "kv_key_scheme", "kv_value_scheme")
_OPTIONS = (*_BITS, "kv_group_size", "kv_quant_scheme")

# By model and quantization: whether the model supports such caches.
_RESULTS: Kept[dict[Any, bool]] = Kept(dict)


def drop_bits(kv_bits: Any, model: Any, kv_group_size: Any) -> Any:
    """The ``kv_bits`` of a generation; None if its model does not support them."""
    if kv_bits is None or supports_bits(model, kv_bits, kv_group_size):
        return kv_bits
    warn(f"{type(model).__module__}.{type(model).__qualname__}")
    return None


def drop_bits_of_both(kv_bits: Any, model: Any, draft_model: Any, kv_group_size: Any) -> Any:
    """The ``kv_bits`` of speculative decoding; None if a model does not support them."""
    kv_bits = drop_bits(kv_bits, model, kv_group_size)
    return drop_bits(kv_bits, draft_model, kv_group_size)


def supports_bits(model: Any, bits: int, group_size: int) -> bool:
    key = bits, group_size
    return try_once(model, key, lambda: try_quantized(model, *key))


def try_once(model: Any, key: Any, try_model: Function) -> bool:
    results = _RESULTS.of(model)
    if key not in results:
        results[key] = try_model()
    return results[key]


def try_quantized(model: Any, bits: int, group_size: int) -> bool:
    """Feed a token, quantize the caches and feed another; whether the last call succeeds.

    True also if an earlier step fails: the release will then raise its own error.
    """
    release: Any = sys.modules["mlx_lm.generate"]
    token = mx.zeros((1, 1), mx.int32)
    try:
        caches = sys.modules["mlx_lm.models.cache"].make_prompt_cache(model)
        model(token, cache=caches)
        release.maybe_quantize_kv_cache(
            caches, quantized_kv_start=0, kv_group_size=group_size, kv_bits=bits
        )
    except Exception:
        return True
    try:
        model(token, cache=caches)
    except Exception:
        return False
    return True


def generate_supported(
    generate: Function, prompt: Any, model: Any, *args: Any, **kwargs: Any
) -> Any:
    """mlx-vlm's tokens of an answer; with float caches if its model does not support others."""
    quantize = sys.modules[generate.__module__].maybe_quantize_kv_cache
    accepted = inspect.signature(quantize).parameters
    options = {
        name: kwargs.get(name, parameter.default)
        for name, parameter in inspect.signature(generate).parameters.items()
        if name in _OPTIONS and name in accepted
    }
    language = getattr(model, "language_model", model)
    own = keep_supported(language, kwargs, options, try_quantized_vlm, quantize)
    return generate(prompt, model, *args, **own)


def try_quantized_vlm(model: Any, quantize: Function, options: dict[str, Any]) -> bool:
    """Whether mlx-vlm's language model accepts a token after the release quantized its caches.

    False also if the release cannot quantize them, or they would keep what the model's own caches
    drop. True if the model does not accept float caches either: the release will then raise its
    own error.
    """
    try:
        if drops_answers(model):
            return False
        caches = sys.modules["mlx_vlm.models.cache"].make_prompt_cache(model)
        if not accepts(model, caches):
            return True
    except Exception:
        return True
    try:
        quantize(caches, quantized_kv_start=0, **options)
    except Exception:
        return False
    return accepts(model, caches)


def init_supported(init: Function, generator: Any, model: Any, *args: Any, **kwargs: Any) -> None:
    init(generator, model, *args, **keep_batch_options(model, type(generator).__module__, kwargs))


def has_bits(*args: Any, **kwargs: Any) -> bool:
    """Whether a call of mlx-vlm selects quantized caches, which it does by keyword."""
    return any(kwargs.get(name) is not None for name in _BITS)


def keep_batch_options(model: Any, module: str, kwargs: dict[str, Any]) -> dict[str, Any]:
    """A batch generator's arguments, without ``kv_bits`` if its model does not support them."""
    options = {name: kwargs[name] for name in _OPTIONS if name in kwargs}
    make = sys.modules[module]._make_cache
    return keep_supported(model, kwargs, options, try_quantized_batch, make)


def keep_supported(
    model: Any,
    kwargs: dict[str, Any],
    options: dict[str, Any],
    try_model: Function,
    function: Function,
) -> dict[str, Any]:
    """A call's arguments, without ``kv_bits`` if its model does not support them."""
    key = try_model, *sorted((name, str(value)) for name, value in options.items())
    if try_once(model, key, lambda: try_model(model, function, options)):
        return kwargs
    warn(f"{type(model).__module__}.{type(model).__qualname__}")
    return {name: value for name, value in kwargs.items() if name not in _BITS}


def try_quantized_batch(model: Any, make: Function, options: dict[str, Any]) -> bool:
    """Whether mlx-vlm's language model accepts a token with the caches that ``make`` makes.

    False if they would keep what the model's own caches drop. True also if the caches cannot be
    made, or the model does not accept float caches either: the release will then raise its own
    error.
    """
    try:
        if drops_answers(model):
            return False
        return accepts(model, make(model, [0], **options)) or not accepts(model, make(model, [0]))
    except Exception:
        return True


def drops_answers(model: Any) -> bool:
    """Whether a model's caches drop older tokens of an answer, but not of the prompt."""
    caches = model.make_cache() if hasattr(model, "make_cache") else ()
    return any(hasattr(layer, "prefill_length") for layer in caches)


def accepts(model: Any, caches: Any) -> bool:
    # A module is a dict of its arrays.
    own = [vars(model), *([model] if isinstance(model, dict) else [])]
    before = [dict(part) for part in own]
    try:
        model(mx.zeros((1, 1), mx.int32), cache=caches)
    except Exception:
        return False
    finally:
        for part, kept in zip(own, before, strict=True):
            for name in [name for name in part if part[name] is not kept.get(name)]:
                part.pop(name)
            for name in kept.keys() - part.keys():
                part[name] = kept[name]
    return True


@cache
def warn(model: str) -> None:
    logger.warning("mlx_patches: %s cannot read quantized caches: kv_bits is ignored", model)


PATCH = Patch(
    id="kv-bits-refused",
    severity="crash",
    targets=(
        *argument(
            "mlx_lm.generate:generate_step",
            "kv_bits",
            drop_bits,
            fingerprint_of=("generate_step", "maybe_quantize_kv_cache"),
        ),
        *argument(
            "mlx_lm.generate:speculative_generate_step",
            "kv_bits",
            drop_bits_of_both,
            fingerprint_of=("speculative_generate_step", "maybe_quantize_kv_cache"),
        ),
        *define(vlm_generators("generate_step"), around(generate_supported), when=has_bits),
        *define(
            vlm_generators("BatchGenerator.__init__"),
            around(init_supported),
            fingerprint_of=("BatchGenerator.__init__", "_make_cache"),
            when=has_bits,
        ),
    ),
)
