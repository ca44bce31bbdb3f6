"""A multimodal turn does not end: vllm-mlx asks the tokenizer alone for its stop tokens.

Why
    The multimodal scheduler takes the tokenizer's own stop token, and from 0.2.8 on those of
    ``generation_config.json``. Gemma 4 ends a turn with 106, which is in that file alone;
    others name theirs in ``config.json``, maybe under ``text_config``.
How
    Stop tokens are those that the host finds and all that the model's folder names.
Upstream
    vllm-mlx 0.2.8 reads ``generation_config.json``, a later one ``config.json`` too.
Retire when
    No supported release drops an id of the folder.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...core.patch import Patch, Target, around
from ..loading.extra_eos import folder_ids


def stop_tokens(find: Any, scheduler: Any) -> set[int]:
    """The host's stop tokens and the folder's."""
    folder = folder_of(scheduler.processor)
    return {*find(scheduler), *(folder_ids(folder) if folder else ())}


def folder_of(processor: Any) -> Path | None:
    """Where a processor's tokenizer was loaded from, if that is a folder."""
    name = getattr(getattr(processor, "tokenizer", processor), "name_or_path", None)
    folder = Path(name) if name else None
    return folder if folder and folder.is_dir() else None


PATCH = Patch(
    id="vllm-stop-tokens",
    summary="a multimodal turn does not end: the host drops stop tokens of the model's folder",
    targets=(
        Target(
            "vllm-mlx",
            "vllm_mlx.mllm_scheduler",
            "MLLMScheduler._get_stop_tokens",
            around(lambda find, scheduler: stop_tokens(find, scheduler)),
        ),
    ),
    probe="mlx_patches.probes.stop_tokens:probe",
    module=__name__,
)
