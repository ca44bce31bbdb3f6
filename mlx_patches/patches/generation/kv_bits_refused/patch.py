"""Generation with ``kv_bits`` fails mid-text on a model that cannot read quantized caches.

Why
    ``kv_bits`` quantizes the caches of any model once a text is long enough. Gemma 2 and 4, Phi,
    DeepSeek V3 and others compute with the keys and values themselves, which are tuples of arrays
    in a quantized cache; gpt-oss uses attention sinks, which quantized attention rejects.
How
    Each model is tried once before generation: it is fed one token before and one after its
    caches are quantized. MLX is lazy, so nothing is computed, but an unsupported operation raises
    at once. If it does, ``kv_bits`` is ignored, with one warning a model class.
Upstream
    Not fixed in mlx-lm 0.32.2.
Retire when
    The release refuses ``kv_bits`` before it generates, or every family reads quantized caches.
"""

from __future__ import annotations

import logging
import sys
import weakref
from collections.abc import Callable
from functools import cache
from typing import Any

from ....core.patch import Patch, Target, around

logger = logging.getLogger("mlx_patches")

# By the id of a model: the model, and whether it reads caches quantized to (bits, group size).
_ANSWERS: dict[int, tuple[weakref.ref[Any], dict[tuple[int, int], bool]]] = {}


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
    """Whether a model can be called after its caches were quantized; it is tried once."""
    answers = answers_of(model)
    if (bits, group_size) not in answers:
        answers[bits, group_size] = goes_on(model, bits, group_size)
    return answers[bits, group_size]


def answers_of(model: Any) -> dict[tuple[int, int], bool]:
    """The results of a model's trials by (bits, group size), kept as long as the model exists."""
    key = id(model)  # a model is a dict, which is not hashable
    known = _ANSWERS.get(key)
    if known is None or known[0]() is not model:
        known = weakref.ref(model, lambda _: _ANSWERS.pop(key, None)), {}
        _ANSWERS[key] = known
    return known[1]


def goes_on(model: Any, bits: int, group_size: int) -> bool:
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


@cache
def warn(model: str) -> None:
    """Log a warning, once a model class."""
    logger.warning("mlx_patches: %s cannot read quantized caches: kv_bits is ignored", model)


PATCH = Patch(
    id="kv-bits-refused",
    severity="crash",
    every_model=True,
    summary="kv_bits fails mid-text on a model that cannot read quantized caches",
    targets=tuple(
        Target(
            "mlx-lm",
            "mlx_lm.generate",
            name,
            around(generated),
            fingerprint_of=(name, "maybe_quantize_kv_cache"),
        )
        for name in ("generate_step", "speculative_generate_step")
    ),
    module=__name__,
)
