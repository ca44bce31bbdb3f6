"""Targets at the caches of both packages, and at both functions of a property."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...core.patch import Factory, Target, around

# Distribution and module, as a ``Target`` begins.
Place = tuple[str, str]

LM_CACHES = ("mlx-lm", "mlx_lm.models.cache")
VLM_CACHES = ("mlx-vlm", "mlx_vlm.models.cache")
CACHES = (LM_CACHES, VLM_CACHES)
BASES = (("mlx-lm", "mlx_lm.models.base"), ("mlx-vlm", "mlx_vlm.models.base"))
SAMPLERS = (("mlx-lm", "mlx_lm.sample_utils"), ("mlx-vlm", "mlx_vlm.sample_utils"))
# mlx-vlm's batch generator; the second from 0.6 on.
GENERATORS = (("mlx-vlm", "mlx_vlm.generate"), ("mlx-vlm", "mlx_vlm.generate.ar"))


def vlm_generators(name: str) -> tuple[str, ...]:
    """The places of a name of mlx-vlm's batch generator."""
    return tuple(f"{module}:{name}" for _, module in GENERATORS)


# The lookup in the prompt cache of mlx-lm's server, which later releases have with the caches.
PROMPT_CACHE_FETCH = tuple(
    f"mlx_lm.{module}:LRUPromptCache.fetch_nearest_cache" for module in ("server", "models.cache")
)

# The models of mlx-vlm that compute M-RoPE positions themselves.
MROPE = (
    "glm4v",
    "glm4v_moe",
    "glm_ocr",
    "paddleocr_vl",
    "qwen2_5_vl",
    "qwen2_vl",
    "qwen3_5",
    "qwen3_omni_moe",
    "qwen3_vl",
    "qwen3_vl_moe",
)


def vlm_models(*families: str) -> tuple[Place, ...]:
    """The language models of these families in mlx-vlm."""
    return tuple(("mlx-vlm", f"mlx_vlm.models.{family}.language") for family in families)


def at(
    places: Sequence[Place], factories: Mapping[str, Factory], **options: Any
) -> tuple[Target, ...]:
    """Targets of these names in each place, with these options."""
    return tuple(
        Target(*place, name, factory, **options)
        for place in places
        for name, factory in factories.items()
    )


def around_setter(
    put: Callable[..., None], get: Callable[..., Any] | None = None
) -> Callable[[Any], property]:
    """A factory like ``around`` that wraps a property's setter, and its getter if ``get`` is given.

    They are called as ``put(setter, instance, value)`` and ``get(getter, instance)``.
    """

    def factory(original: Any) -> property:
        getter = around(get)(original.fget) if get else original.fget
        return property(getter, around(put)(original.fset), original.fdel, original.__doc__)

    return factory
