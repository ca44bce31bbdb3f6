"""Qwen3-Omni in mlx-vlm: sounds raise before 0.6, and get wrong numbers of tokens since.

Why: Before 0.6, the chat template gets no sounds, the processor their paths, which it cannot read
    with older transformers, and the model no mask of their frames. The release's own processor
    counts a sound's tokens from a mask of samples, of which 160 are a frame. From 0.7 on it divides
    by a rounded ratio, and the shorter of two sounds loses frames. Single requests are wrong too.
How: Messages name their sounds. The processor receives samples, and asks the feature extractor for
    the mask of frames. The model receives it by the name that it reads.
Upstream: mlx-vlm 0.6 reads sounds; mlx-vlm issue 1620, repaired only for single sounds.
Retire when: The processor passes ``return_attention_mask`` to the feature extractor.
"""

import importlib
from pathlib import Path
from typing import Any

from ....core.verbs import Function, Patch, argument, result, wrap

OPTION = "return_attention_mask"
# The names of a sound's mask: the processor's, and the model's.
GIVEN, READ = "feature_attention_mask", "input_features_mask"
PLACE = "mlx_vlm.models.qwen3_omni_moe"


def count_frames(call: Function, processor: Any, *args: Any, **more: Any) -> Any:
    """The inputs of a prompt, with the mask of its sounds' frames."""
    if more.get("audio") is not None:
        more.setdefault(OPTION, True)
    return call(processor, *args, **more)


def rename_mask(call: Function, model: Any, *args: Any, **inputs: Any) -> Any:
    """The embeddings of a prompt, with the mask of its sounds' frames."""
    if GIVEN in inputs and inputs.get(READ) is None:
        inputs[READ] = inputs.pop(GIVEN)
    return call(model, *args, **inputs)


def load_sounds(processor: Any, audio: Any) -> list[Any]:
    """The samples of sounds, of which some are paths."""
    load = importlib.import_module("mlx_vlm.utils").load_audio
    rate = processor.feature_extractor.sampling_rate
    return [load(one, sr=rate) if isinstance(one, str | Path) else one for one in audio]


def add_sounds(message: Any, /, role: str, skip_audio_token: bool, num_audios: int) -> Any:
    """A message for the chat template, with a part for each sound."""
    named = any(part["type"] == "audio" for part in message["content"])
    if role != "user" or skip_audio_token or named:
        return message
    return {**message, "content": [*message["content"], *[{"type": "audio"}] * num_audios]}


def reads_samples(processor: Any, audio: Any) -> bool:
    """Whether a processor of Qwen3-Omni gets sounds."""
    name = type(processor).__name__.lower()
    return bool(audio) and "qwen3" in name and "omni" in name


PATCH = Patch(
    id="qwen3-omni-sounds",
    every_model=True,
    changes_solo=True,
    targets=(
        *wrap(f"{PLACE}.processing_qwen3_omni_moe:Qwen3OmniMoeProcessor.__call__", count_frames),
        *wrap(f"{PLACE}.qwen3_omni_moe:Model.get_input_embeddings", rename_mask),
        *argument(
            "mlx_vlm.utils:process_inputs_with_fallback",
            "audio",
            load_sounds,
            when=reads_samples,
            supports=True,
            fingerprint_of=("prepare_inputs",),
        ),
        *result(
            "mlx_vlm.prompt_utils:MessageFormatter._format_list_with_image",
            add_sounds,
            supports=True,
        ),
    ),
)
