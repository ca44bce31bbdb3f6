"""InternVL3 with a Qwen2 or Llama text model, saved for transformers, does not load in mlx-vlm.

Why: mlx-vlm's InternVL always has a Qwen3 text model. Most published folders have Qwen2, whose
    attention has biases and no norms: "Received parameters not in model". InternVL3-9B and several
    of InternVL2.5 have Llama, without either.
How: A model whose text config is Qwen2's or Llama's gets the release's text model of that type.
Upstream: Not fixed in mlx-vlm 0.7.10.
Retire when: mlx-vlm builds the text model that the config names.
"""

import importlib
from typing import Any

from ....core.verbs import Patch, after

_KINDS = ("qwen2", "llama")


def set_language_model(model: Any, config: Any, /) -> None:
    """Give a new model the text model that its config names."""
    if config.text_config.model_type in _KINDS:
        model.language_model = build_text(config.text_config.model_type, vars(config.text_config))


def build_text(kind: str, settings: dict[str, Any]) -> Any:
    package = f"mlx_vlm.models.{kind}"
    config = importlib.import_module(f"{package}.config").ModelConfig.from_dict(settings)
    return importlib.import_module(f"{package}.language").LanguageModel(config)


PATCH = Patch(
    id="internvl-qwen2",
    severity="crash",
    every_model=True,
    changes_solo=True,
    targets=after("mlx_vlm.models.internvl.internvl:Model.__init__", set_language_model),
)
