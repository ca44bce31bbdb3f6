"""vllm-mlx does not start: it discards the model that it has loaded.

Why: ``load_model_with_fallback`` has no ``return`` after a successful load. Its callers unpack the
    result: "cannot unpack non-iterable NoneType object".
How: If it returns None, the model is loaded again with the same call of mlx-lm.
Upstream: vllm-mlx 0.2.8 returns the loaded model.
Retire when: vllm-mlx 0.2.7 is no longer supported.
"""

from typing import Any

from ....core.verbs import Patch, result


def load_missing(pair: Any, model_name: str, tokenizer_config: dict[str, Any] | None) -> Any:
    """The model and its tokenizer, loaded with mlx-lm if the host returned nothing."""
    if pair is not None:
        return pair
    import mlx_lm

    return mlx_lm.load(model_name, tokenizer_config=tokenizer_config or {})


PATCH = Patch(
    id="vllm-loaded-model",
    severity="crash",
    targets=result("vllm_mlx.utils.tokenizer:load_model_with_fallback", load_missing),
)
