"""Counts the tokens of two short sounds, prepares a file, and passes a mask."""

import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ....probes.kit import (
    NotApplicable,
    Result,
    Target,
    make_sound,
    mx,
    own_class_of,
    require_module,
)

# The samples of two sounds, and their tokens: 160 samples are a frame, 8 frames a token.
SOUNDS = {1440: 2, 1759: 2}
RATE = 16000
PROCESSING = "mlx_vlm.models.qwen3_omni_moe.processing_qwen3_omni_moe"
AUDIO, START, END = "<audio>", "<start>", "<end>"


def probe(target: Target) -> Result:
    """Red if sounds have other numbers of tokens than of features, or are not read."""
    if target.name == "Model.get_input_embeddings":
        return probe_mask(own_class_of(target))
    if not target.supports:
        return probe_tokens(own_class_of(target))
    is_message = target.name == "MessageFormatter._format_list_with_image"
    own = probe_message(own_class_of(target)) if is_message else probe_file()
    # A supporting target is needed if the processor is repaired.
    return own if own.red else probe_tokens(require_module(PROCESSING).Qwen3OmniMoeProcessor)


def probe_tokens(kind: Any) -> Result:
    """Red if sounds have other numbers of tokens than of features."""
    whisper = require_module("transformers").WhisperFeatureExtractor(
        feature_size=8, return_attention_mask=True
    )
    texts: list[str] = []

    def tokenize(text: Any, **_: Any) -> dict[str, Any]:
        texts.extend(text)
        return {}

    names = ("image", "video", "vision_bos", "vision_eos")
    processor = SimpleNamespace(
        feature_extractor=whisper,
        tokenizer=tokenize,
        image_processor=SimpleNamespace(merge_size=2),
        video_processor=SimpleNamespace(merge_size=2),
        audio_token=AUDIO,
        audio_bos_token=START,
        audio_eos_token=END,
        **{f"{name}_token": f"<{name}>" for name in names},
    )
    processor.replace_multimodal_special_tokens = lambda *args, **options: (
        kind.replace_multimodal_special_tokens(processor, *args, **options)
    )
    array = require_module("numpy").zeros
    sounds = [array(length, "float32") for length in SOUNDS]
    kind.__call__(processor, text=[AUDIO * len(sounds)], audio=sounds, padding=True)
    tokens, wanted = texts[0].count(AUDIO), sum(SOUNDS.values())
    return Result(tokens != wanted, f"{tokens} tokens for {wanted} features")


def probe_message(kind: Any) -> Result:
    """Red if a message has other numbers of sounds than its request."""
    given = {"skip_image_token": False, "skip_audio_token": False, "num_images": 0}
    try:
        formatter = kind("qwen3_omni_moe")
    except ValueError as error:
        raise NotApplicable(f"the release lacks Qwen3-Omni: {error}") from None
    message = formatter._format_list_with_image("a", "user", **given, num_audios=2)
    types = [part["type"] for part in message["content"]]
    return Result(types.count("audio") != 2, f"{types} for two sounds")


def probe_mask(kind: Any) -> Result:
    """Red if the model does not read the mask of a sound's frames."""
    seen: list[Any] = []

    def embed(*, feature_attention_mask: Any = None, **_: Any) -> None:
        seen.append(feature_attention_mask)

    model, mask = SimpleNamespace(thinker=SimpleNamespace(get_input_embeddings=embed)), mx.ones(3)
    try:
        kind.get_input_embeddings(model, input_ids=mask, feature_attention_mask=mask)
    except TypeError as error:
        return Result(True, f"TypeError: {error}"[:160])
    return Result(seen[0] is not mask, "the mask is dropped" if seen[0] is None else "it is read")


def probe_file() -> Result:
    """Red if the processor receives the path of a sound."""
    utils = require_module("mlx_vlm.utils")
    seen: list[Any] = []

    class Qwen3OmniMoeProcessor:
        tokenizer = SimpleNamespace(pad_token="", eos_token="")

        def feature_extractor(self, *_: Any, **__: Any) -> dict[str, Any]:
            ones = require_module("numpy").ones
            return {"input_features": ones((1, 2, 3)), "attention_mask": ones((1, 3))}

        feature_extractor.sampling_rate = RATE  # type: ignore[attr-defined]

        def __call__(self, audio: Any = None, **_: Any) -> dict[str, Any]:
            seen.extend(audio)
            return {"input_ids": mx.ones((1, 2))}

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "sound.wav")
        path.write_bytes(make_sound(rate=RATE))
        try:
            utils.prepare_inputs(Qwen3OmniMoeProcessor(), audio=[str(path)], prompts="a")
        except ImportError as error:
            raise NotApplicable(f"the release reads no sounds here: {error}") from None
    return Result(isinstance(seen[0], str), f"the processor receives a {type(seen[0]).__name__}")
