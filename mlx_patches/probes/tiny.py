"""Tiny random-weight models, built with the classes of the installed release."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from . import NotApplicable

VOCABULARY = 64


@dataclass(frozen=True, slots=True)
class TinyModel:
    """A language model, and the functions that make its caches.

    ``logits(tokens, cache)`` takes a list of rows of equal length and returns float32 logits
    of shape (rows, length, vocabulary). ``solo_cache()`` and ``batch_cache(left_padding)``
    make the caches of one row and of a left-padded batch. ``module`` is the model itself.
    """

    name: str
    logits: Callable[[Any, Any], Any]
    solo_cache: Callable[[], list[Any]]
    batch_cache: Callable[[Sequence[int]], list[Any]]
    module: Any


def gemma4(
    window: int = 8,
    layer_types: Sequence[str] = ("sliding_attention", "full_attention") * 2,
    shared_layers: int = 0,
    seed: int = 0,
) -> TinyModel:
    """Gemma 4's language model in mlx-vlm.

    Args:
        window: the sliding window, in tokens.
        layer_types: ``sliding_attention`` or ``full_attention`` for each layer.
        shared_layers: how many of the last layers share an earlier layer's keys and values.
        seed: the seed of the weights.
    """
    config = _imported("mlx_vlm.models.gemma4.config").TextConfig(
        hidden_size=32,
        num_hidden_layers=len(layer_types),
        intermediate_size=64,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_global_key_value_heads=2,
        head_dim=16,
        global_head_dim=16,
        vocab_size=VOCABULARY,
        vocab_size_per_layer_input=VOCABULARY,
        num_kv_shared_layers=shared_layers,
        hidden_size_per_layer_input=8,
        sliding_window=window,
        layer_types=list(layer_types),
        use_double_wide_mlp=False,
    )
    language = _imported("mlx_vlm.models.gemma4.language")
    return _tiny("gemma4", language.LanguageModel(config), language.__name__, seed)


def mistral3(model_type: str = "ministral3", scale_after: int = 4, seed: int = 0) -> TinyModel:
    """The language model of Mistral 3 in mlx-vlm.

    Args:
        model_type: the text model's type, ``ministral3`` or ``mistral4``.
        scale_after: how many positions share an attention scale before it grows.
        seed: the seed of the weights.
    """
    sliding = model_type == "ministral3"
    config = _imported("mlx_vlm.models.mistral3.config").TextConfig(
        model_type=model_type,
        hidden_size=32,
        num_hidden_layers=4,
        intermediate_size=64,
        num_attention_heads=4,
        num_key_value_heads=2 if sliding else 4,
        head_dim=16,
        rms_norm_eps=1e-6,
        vocab_size=VOCABULARY,
        max_position_embeddings=512,
        layer_types=["sliding_attention" if sliding else "full_attention", "full_attention"] * 2,
        sliding_window=8,
        rope_parameters={
            "rope_theta": 10000.0,
            "rope_type": "default",
            "llama_4_scaling_beta": 0.5,
            "original_max_position_embeddings": scale_after,
        },
        q_lora_rank=16,
        kv_lora_rank=16,
        qk_rope_head_dim=16,
        qk_nope_head_dim=16,
        qk_head_dim=32,
        v_head_dim=16,
    )
    language = _imported("mlx_vlm.models.mistral3.language")
    return _tiny(model_type, language.LanguageModel(config), language.__name__, seed)


def gemma3n(distribution: str = "mlx-vlm", shared_layers: int = 2, seed: int = 0) -> TinyModel:
    """Gemma 3n's language model in mlx-lm or in mlx-vlm.

    Args:
        distribution: ``mlx-lm`` or ``mlx-vlm``.
        shared_layers: how many of the last layers share an earlier layer's keys and values.
        seed: the seed of the weights.
    """
    layers = 6
    config = {
        "model_type": "gemma3n",
        "hidden_size": 32,
        "num_hidden_layers": layers,
        "intermediate_size": [64] * layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "rms_norm_eps": 1e-6,
        "vocab_size": VOCABULARY,
        "vocab_size_per_layer_input": VOCABULARY,
        "hidden_size_per_layer_input": 8,
        "num_kv_shared_layers": shared_layers,
        "layer_types": ["sliding_attention", "full_attention"] * (layers // 2),
        "sliding_window": 8,
        "max_position_embeddings": 512,
        "rope_local_base_freq": 10000.0,
        "rope_theta": 1000000.0,
        "final_logit_softcapping": 30.0,
        "activation_sparsity_pattern": [0.0] * layers,
        "altup_num_inputs": 4,
        "altup_coef_clip": 120.0,
        "altup_correct_scale": True,
        "altup_active_idx": 0,
        "laurel_rank": 8,
    }
    if distribution == "mlx-lm":
        module = _imported("mlx_lm.models.gemma3n")
        args = module.ModelArgs(model_type="gemma3n", text_config=config)
        return _tiny("gemma3n", module.Model(args), module.__name__, seed)
    text_config = _imported("mlx_vlm.models.gemma3n.config").TextConfig(**config)
    language = _imported("mlx_vlm.models.gemma3n.language")
    return _tiny("gemma3n", language.LanguageModel(text_config), language.__name__, seed)


def aya_vision(seed: int = 0) -> TinyModel:
    """Aya Vision's language model in mlx-vlm; every second layer has full attention."""
    config = _imported("mlx_vlm.models.aya_vision.config").TextConfig(
        model_type="cohere2",
        hidden_size=32,
        head_dim=8,
        num_hidden_layers=4,
        intermediate_size=64,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=VOCABULARY,
        sliding_window=8,
        sliding_window_pattern=2,
        logit_scale=1.0,
    )
    language = _imported("mlx_vlm.models.aya_vision.language")
    return _tiny("aya_vision", language.LanguageModel(config), language.__name__, seed)


def llama(layers: int = 2, seed: int = 0) -> TinyModel:
    """Llama in mlx-lm, for comparison: it is right in a batch."""
    module = _imported("mlx_lm.models.llama")
    args = module.ModelArgs(
        model_type="llama",
        hidden_size=32,
        num_hidden_layers=layers,
        intermediate_size=64,
        num_attention_heads=4,
        num_key_value_heads=2,
        rms_norm_eps=1e-6,
        vocab_size=VOCABULARY,
    )
    return _tiny("llama", module.Model(args), module.__name__, seed)


MODELS: dict[str, Callable[..., TinyModel]] = {"gemma4": gemma4, "llama": llama}


def _tiny(name: str, model: Any, module: str, seed: int) -> TinyModel:
    import mlx.core as mx
    from mlx.utils import tree_map_with_path

    key = mx.random.key(seed)
    keys = iter(mx.random.split(key, 4096))

    def draw(path: str, value: Any) -> Any:
        # Norm weights near one; matrices large enough that every token changes the logits.
        if value.ndim < 2:
            return 1 + 0.1 * mx.random.normal(value.shape, key=next(keys))
        return mx.random.normal(value.shape, key=next(keys)) * (2.0 / value.shape[-1]) ** 0.5

    model.update(tree_map_with_path(draw, model.parameters()))
    mx.eval(model.parameters())

    def logits(tokens: Any, cache: Any) -> Any:
        out = model(mx.array(tokens), cache=cache)
        return getattr(out, "logits", out).astype(mx.float32)

    def batch_cache(left_padding: Sequence[int]) -> list[Any]:
        return [_batched(layer, list(left_padding), module) for layer in _make_cache(model, module)]

    return TinyModel(name, logits, lambda: _make_cache(model, module), batch_cache, model)


def _make_cache(model: Any, module: str) -> list[Any]:
    if hasattr(model, "make_cache"):
        return list(model.make_cache())
    return list(_cache_module(module).make_prompt_cache(model))


def _batched(layer: Any, left_padding: list[int], module: str) -> Any:
    """The batch cache that the release's own engine uses for a solo cache."""
    caches = importlib.import_module(type(layer).__module__)
    kind = type(layer).__name__
    if kind == "KVCache":
        return caches.BatchKVCache(left_padding)
    if kind == "RotatingKVCache":
        return caches.BatchRotatingKVCache(layer.max_size, left_padding)
    raise NotApplicable(f"no batch cache for {kind}")


def _cache_module(module: str) -> Any:
    package = module.partition(".")[0]
    return _imported(f"{package}.models.cache")


def _imported(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise NotApplicable(f"{module} cannot be imported: {error}") from error
