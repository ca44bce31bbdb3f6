"""vllm-mlx --mllm, simple engine: text chats fail or are wrong, except with Gemma 4 and Qwen3.5.

Why: The engine of vllm-mlx 0.4.1 answers chats without media with a text model of mlx-lm that has
    the weights of the loaded model. Every family but Gemma 4 gets the layers of Qwen3.5, for most
    of which there are no weights: Qwen2.5-VL answers with status 500, or random text.
How: No text model is built for these families, so mlx-vlm answers all their chats.
Upstream: Fixed in vllm-mlx 0.6.0, in the same way.
Retire when: No supported release builds a text model for each family.
"""

import json
from pathlib import Path
from typing import Any

from ....core.verbs import Function, Patch, wrap

_FAMILIES = ("gemma4", "qwen3_5")


def build_own(build: Function, vlm_model: Any, model_path: Any, *args: Any, **options: Any) -> Any:
    """The text model, or None if its layers are another family's."""
    if not is_own(read_type(Path(model_path or ".", "config.json"))):
        return None
    return build(vlm_model, model_path, *args, **options)


def is_own(model_type: str) -> bool:
    return model_type.startswith(_FAMILIES)


def read_type(file: Path) -> str:
    """The type of a folder's text model; no family's without a config, which the release needs."""
    config = json.loads(file.read_text()) if file.exists() else {}
    return str(config.get("text_config", config).get("model_type") or config.get("model_type"))


PATCH = Patch(
    id="vllm-text-model",
    severity="crash",
    targets=wrap("vllm_mlx.text_model_from_vlm:build_text_model", build_own, answers_none=True),
)
