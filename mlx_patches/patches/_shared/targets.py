"""Targets at the caches of both packages, and at both functions of a property."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ...core.verbs import Factory, Target, around, define

LM_CACHES = "mlx_lm.models.cache"
VLM_CACHES = "mlx_vlm.models.cache"
CACHES = (LM_CACHES, VLM_CACHES)
# mlx-vlm's batch generator; the second from 0.6 on.
GENERATORS = ("mlx_vlm.generate", "mlx_vlm.generate.ar")


def vlm_generators(name: str) -> tuple[str, ...]:
    return tuple(f"{module}:{name}" for module in GENERATORS)


def vlm_server(module: str, name: str) -> tuple[str, ...]:
    """The places of a name of mlx-vlm's server, which is in one of its modules from 0.6 on."""
    return f"mlx_vlm.server:{name}", f"mlx_vlm.server.{module}:{name}"


# The lookup in the prompt cache of mlx-lm's server, which later releases have with the caches.
PROMPT_CACHE_FETCH = tuple(
    f"mlx_lm.{module}:LRUPromptCache.fetch_nearest_cache" for module in ("server", "models.cache")
)

# The fields of an optional patch that limits what a request or a model's folder can reach, and of
# one that the profile ``safe`` has too.
LIMIT: dict[str, Any] = {"severity": "security", "security": True, "optional": True}
LIMIT["profiles"] = ("security",)
SAFE_LIMIT = LIMIT | {"profiles": ("security", "safe")}

# The models of mlx-vlm that compute M-RoPE positions themselves.
MROPE = (
    "glm4v glm4v_moe glm_ocr paddleocr_vl qwen2_5_vl qwen2_vl qwen3_5 qwen3_omni_moe qwen3_vl"
    " qwen3_vl_moe"
)


def at(
    modules: Iterable[str], factories: Mapping[str, Factory], **options: Any
) -> tuple[Target, ...]:
    """The targets of ``define`` for several names of each module."""
    return tuple(
        target
        for module in modules
        for name, factory in factories.items()
        for target in define(f"{module}:{name}", factory, **options)
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
