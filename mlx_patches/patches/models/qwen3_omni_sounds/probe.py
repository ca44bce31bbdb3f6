"""Counts the tokens of two short sounds."""

from types import SimpleNamespace
from typing import Any

from ....probes.kit import Result, Target, own_class_of, require_module

# The samples of two sounds, and their tokens: 160 samples are a frame, 8 frames a token.
SOUNDS = {1440: 2, 1759: 2}
AUDIO, START, END = "<audio>", "<start>", "<end>"


def probe(target: Target) -> Result:
    """Red if sounds have other numbers of tokens than of features."""
    kind = own_class_of(target)
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
