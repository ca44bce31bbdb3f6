"""vllm-mlx --mllm: generation does not stop, the model's own stop tokens are ignored.

Why: The multimodal scheduler uses only the tokenizer's stop token, and from 0.2.8 on also those in
    ``generation_config.json``. Gemma 4 ends a turn with 106, which is only in that file; other
    models name theirs in ``config.json``, some under ``text_config``.
How: The stop tokens of the model's folder are added to those that the host finds.
Upstream: vllm-mlx 0.2.8 reads ``generation_config.json``, a later release ``config.json`` too.
Retire when: No supported release drops an id of the folder.
"""

from pathlib import Path
from typing import Any

from ....core.verbs import Patch, result
from ..._shared.stop_tokens import read_folder_ids


def add_folder_ids(tokens: set[int], scheduler: Any, /) -> set[int]:
    """The stop tokens of the host and of the model's folder."""
    folder = find_folder(scheduler.processor)
    return {*tokens, *(read_folder_ids(folder) if folder else ())}


def find_folder(processor: Any) -> Path | None:
    """The folder that a processor's tokenizer was loaded from; None if it is not a folder."""
    name = getattr(getattr(processor, "tokenizer", processor), "name_or_path", None)
    folder = Path(name) if name else None
    return folder if folder and folder.is_dir() else None


PATCH = Patch(
    id="vllm-stop-tokens",
    targets=result("vllm_mlx.mllm_scheduler:MLLMScheduler._get_stop_tokens", add_folder_ids),
)
