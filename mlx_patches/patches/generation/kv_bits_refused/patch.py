"""Generation with ``kv_bits`` fails mid-text on a model that cannot read quantized caches.

Why
    ``kv_bits`` quantizes the caches of any model once a text is long enough; mlx-vlm's batches
    have quantized caches from the start. Gemma 2 and 4, Phi, DeepSeek V3 and others compute with
    the keys and values themselves, which are tuples of arrays in a quantized cache; gpt-oss uses
    attention sinks, which quantized attention rejects. Unlimited OCR's caches drop its older
    answer tokens, and the quantized ones that take their place keep them.
How
    Each model is tried once before generation: it is fed a token with quantized caches. MLX is
    lazy, so nothing is computed, but an unsupported operation raises at once. If it does,
    ``kv_bits`` is ignored, with one warning a model class. It is also ignored for a model whose own
    caches drop tokens of an answer; releases do not quantize other caches that drop tokens.
Upstream
    Not fixed in mlx-lm 0.32.2 and mlx-vlm 0.7.10.
Retire when
    The release refuses ``kv_bits`` before it generates, or every family reads quantized caches.
"""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

from ....core.patch import Patch, Target, around
from ..._shared.kept import Kept
from ..._shared.targets import GENERATORS, at

logger = logging.getLogger("mlx_patches")

# The arguments of mlx-vlm that ask for quantized caches; without them caches hold floats.
_BITS = ("kv_bits", "kv_key_bits", "kv_value_bits", "kv_key_scheme", "kv_value_scheme")
_OPTIONS = (*_BITS, "kv_group_size", "kv_quant_scheme")

# For a model, whether it reads caches quantized in a way.
_ANSWERS: Kept[dict[Any, bool]] = Kept(dict)


def generated(
    generate: Callable[..., Any],
    prompt: Any,
    model: Any,
    *args: Any,
    kv_bits: int | None = None,
    kv_group_size: int = 64,
    **kwargs: Any,
) -> Any:
    """The tokens of an answer, one by one; without ``kv_bits`` if a model cannot use it."""
    if kv_bits is not None:
        draft = kwargs.get("draft_model", args[0] if args else None)
        for one in (model, draft):
            if one is not None and not reads_quantized(one, kv_bits, kv_group_size):
                warn(f"{type(one).__module__}.{type(one).__qualname__}")
                kv_bits = None
                break
    return generate(prompt, model, *args, kv_bits=kv_bits, kv_group_size=kv_group_size, **kwargs)


def reads_quantized(model: Any, bits: int, group_size: int) -> bool:
    """Whether a model can be called after its caches were quantized."""
    key = bits, group_size
    return tried_once(model, key, lambda: reads_quantized_row(model, *key))


def tried_once(model: Any, key: Any, succeeds: Callable[[], bool]) -> bool:
    """The result of a model's trial, kept as long as the model exists; ``succeeds`` makes it."""
    answers = _ANSWERS.of(model)
    if key not in answers:
        answers[key] = succeeds()
    return answers[key]


def reads_quantized_row(model: Any, bits: int, group_size: int) -> bool:
    """Feed a token, quantize the caches and feed another; whether the last call succeeds.

    True also if an earlier step fails: then the release's own error is left to occur.
    """
    import mlx.core as mx

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


def generated_vlm(
    generate: Callable[..., Any], prompt: Any, model: Any, *args: Any, **kwargs: Any
) -> Any:
    """The tokens of an answer of mlx-vlm; without quantized caches if its model reads none."""
    if not asks_for_bits(**kwargs):  # another patch's layer let this one run
        return generate(prompt, model, *args, **kwargs)
    quantize = sys.modules[generate.__module__].maybe_quantize_kv_cache
    taken = inspect.signature(quantize).parameters
    options = {
        name: kwargs.get(name, parameter.default)
        for name, parameter in inspect.signature(generate).parameters.items()
        if name in _OPTIONS and name in taken
    }
    language = getattr(model, "language_model", model)
    own = readable_options(language, kwargs, options, reads_quantized_answer, quantize)
    return generate(prompt, model, *args, **own)


def reads_quantized_answer(
    model: Any, quantize: Callable[..., Any], options: dict[str, Any]
) -> bool:
    """Whether a language model of mlx-vlm reads a token after the release quantized its caches.

    False also if the release cannot quantize them, or they would keep what its own caches drop.
    True if the model reads no token with floats either: then the release's own error is left to
    occur.
    """
    try:
        if drops_answers(model):
            return False
        caches = sys.modules["mlx_vlm.models.cache"].make_prompt_cache(model)
        if not is_read(model, caches):
            return True
    except Exception:
        return True
    try:
        quantize(caches, quantized_kv_start=0, **options)
    except Exception:
        return False
    return is_read(model, caches)


def init_readable(
    init: Callable[..., None], generator: Any, model: Any, *args: Any, **kwargs: Any
) -> None:
    """Make a batch generator of mlx-vlm; without quantized caches if its model reads none."""
    init(generator, model, *args, **readable(model, type(generator).__module__, kwargs))


def asks_for_bits(*args: Any, **kwargs: Any) -> bool:
    """Whether a call of mlx-vlm asks for quantized caches; it names the arguments."""
    return any(kwargs.get(name) is not None for name in _BITS)


def readable(model: Any, module: str, kwargs: dict[str, Any]) -> dict[str, Any]:
    """A batch generator's arguments, without those for quantized caches if it reads none."""
    if not asks_for_bits(**kwargs):  # another patch's layer let this one run
        return kwargs
    options = {name: kwargs[name] for name in _OPTIONS if name in kwargs}
    make = sys.modules[module]._make_cache
    return readable_options(model, kwargs, options, reads_quantized_batch, make)


def readable_options(
    model: Any,
    kwargs: dict[str, Any],
    options: dict[str, Any],
    reads: Callable[..., bool],
    function: Callable[..., Any],
) -> dict[str, Any]:
    """A call's arguments, without those for quantized caches if the model cannot read them.

    Args:
        options: those of the quantization.
        reads: the trial, ``reads(model, function, options)``.
        function: the release's, which makes or quantizes the caches.
    """
    key = reads, *sorted((name, str(value)) for name, value in options.items())
    if tried_once(model, key, lambda: reads(model, function, options)):
        return kwargs
    warn(f"{type(model).__module__}.{type(model).__qualname__}")
    return {name: value for name, value in kwargs.items() if name not in _BITS}


def reads_quantized_batch(model: Any, make: Callable[..., Any], options: dict[str, Any]) -> bool:
    """Whether a language model of mlx-vlm reads a token with the caches that ``make`` makes.

    False if they would keep what its own caches drop.

    True also if the caches cannot be made, or the model cannot read floats either: then the
    release's own error is left to occur.
    """
    try:
        if drops_answers(model):
            return False
        return is_read(model, make(model, [0], **options)) or not is_read(model, make(model, [0]))
    except Exception:
        return True


def drops_answers(model: Any) -> bool:
    """Whether a model's caches drop older tokens of an answer, and keep the prompt."""
    own = model.make_cache() if hasattr(model, "make_cache") else ()
    return any(hasattr(layer, "prefill_length") for layer in own)


def is_read(model: Any, caches: Any) -> bool:
    """Whether a model reads a token with these caches. Its own attributes stay as they are."""
    import mlx.core as mx

    # A module keeps its arrays in itself, as a dict.
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
    """Log a warning, once a model class."""
    logger.warning("mlx_patches: %s cannot read quantized caches: kv_bits is ignored", model)


PATCH = Patch(
    id="kv-bits-refused",
    severity="crash",
    every_model=True,
    summary=(
        "mlx-lm and mlx-vlm: kv_bits crashes mid-generation on unsupported "
        "models; now ignored with a warning"
    ),
    targets=(
        *(
            Target(
                "mlx-lm",
                "mlx_lm.generate",
                name,
                around(generated),
                fingerprint_of=(name, "maybe_quantize_kv_cache"),
            )
            for name in ("generate_step", "speculative_generate_step")
        ),
        *at(GENERATORS, {"generate_step": around(generated_vlm)}, when=asks_for_bits),
        *at(
            GENERATORS,
            {"BatchGenerator.__init__": around(init_readable)},
            fingerprint_of=("BatchGenerator.__init__", "_make_cache"),
            when=asks_for_bits,
        ),
    ),
)
