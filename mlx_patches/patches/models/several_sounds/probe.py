"""Prepares a prompt with two sounds, with a processor that counts what it receives."""

import contextlib
import io
from types import SimpleNamespace
from typing import Any

from ....probes.kit import NotApplicable, Result, Target, require_module, require_own

SOUNDS = 2


class Gemma4Processor:
    """A processor of that name; ``sounds``: how many it received."""

    sounds = 0
    supports_multiple_audio = False
    # What later releases read.
    feature_extractor = SimpleNamespace(sampling_rate=16000)
    tokenizer = SimpleNamespace(pad_token="")

    def __call__(self, text: Any, audio: Any = None, images: Any = None, **_: Any) -> Any:
        self.sounds = len(list(audio))
        return {"input_ids": [[1]], "attention_mask": [[1]]}


def probe(target: Target) -> Result:
    """Red if the processor receives fewer sounds than the prompt has."""
    import numpy as np

    prepare, processor = require_own(target), Gemma4Processor()
    released = require_module("mlx_vlm.models.gemma4.processing_gemma4").Gemma4Processor
    if not hasattr(released, "_compute_audio_num_tokens"):
        raise NotApplicable("the processor reads no sounds")
    processor.supports_multiple_audio = getattr(released, "supports_multiple_audio", False)
    with contextlib.redirect_stdout(io.StringIO()):
        prepare(processor, audio=[np.zeros(3)] * SOUNDS, prompts=["one two"])
    return Result(processor.sounds != SOUNDS, f"{processor.sounds} of {SOUNDS} sounds")
