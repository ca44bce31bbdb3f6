"""A multimodal turn does not end: vllm-mlx ignores stop tokens in the model's folder.

Why
    The multimodal scheduler uses only the tokenizer's stop token, and from 0.2.8 on also those in
    ``generation_config.json``. Gemma 4 ends a turn with 106, which is only in that file; other
    models name theirs in ``config.json``, some under ``text_config``.
How
    The stop tokens are those that the host finds and all that the model's folder names.
Upstream
    vllm-mlx 0.2.8 reads ``generation_config.json``, a later release ``config.json`` too.
Retire when
    No supported release drops an id of the folder.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ....core.patch import Patch, Target, around
from ..._shared.stop_tokens import folder_ids


def stop_tokens(find: Any, scheduler: Any) -> set[int]:
    """The stop tokens of the host and of the model's folder."""
    folder = folder_of(scheduler.processor)
    return {*find(scheduler), *(folder_ids(folder) if folder else ())}


def folder_of(processor: Any) -> Path | None:
    """The folder that a processor's tokenizer was loaded from; None if it is not a folder."""
    name = getattr(getattr(processor, "tokenizer", processor), "name_or_path", None)
    folder = Path(name) if name else None
    return folder if folder and folder.is_dir() else None


PATCH = Patch(
    id="vllm-stop-tokens",
    every_model=True,
    summary="vllm-mlx --mllm: generation does not stop, the model's own stop tokens are ignored",
    targets=(
        Target(
            "vllm-mlx",
            "vllm_mlx.mllm_scheduler",
            "MLLMScheduler._get_stop_tokens",
            around(stop_tokens),
        ),
    ),
)
