"""Loads a sound that a request has in base64, and prepares one without images."""

import base64
import importlib
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ....probes.kit import NotApplicable, Result, Target, make_sound, mx, require_own

RATE, SAMPLES = 16000, 800
FRAMES = b"\x00\x40" * SAMPLES


def probe(target: Target) -> Result:
    """Red if the content of a file is taken for its path, or an empty list is passed on."""
    own = require_own(target)
    server = importlib.util.find_spec("mlx_vlm.server")
    if server and server.submodule_search_locations:
        raise NotApplicable("the server decodes sounds")
    if not (server and server.origin and "input_audio" in Path(server.origin).read_text()):
        raise NotApplicable("the server takes no sounds")
    return probe_images(own) if target.name == "prepare_inputs" else probe_content(own)


def probe_images(prepare: Any) -> Result:
    """Red if the processor of a prompt with a sound gets an empty list of images."""
    seen: list[Any] = []

    class Processor:
        tokenizer = SimpleNamespace(pad_token="", eos_token="")
        feature_extractor = SimpleNamespace(sampling_rate=RATE)

        def __call__(self, images: Any = None, audio: Any = None, **_: Any) -> dict[str, Any]:
            seen.append(images)
            return {"input_ids": mx.ones((1, 2)), "attention_mask": mx.ones((1, 2))}

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "sound.wav")
        path.write_bytes(make_sound(FRAMES))
        try:
            prepare(Processor(), images=[], audio=[str(path)], prompts="a")
        except ImportError as error:
            raise NotApplicable(f"the release reads no sounds here: {error}") from None
    return Result(seen != [None], f"the processor receives {seen[0]} as images")


def probe_content(load: Any) -> Result:
    """Red if the content of a file is taken for its path."""
    text = base64.b64encode(make_sound(FRAMES)).decode()
    for given in (text, f"data:audio/wav;base64,{text}"):
        try:
            samples = load(given, sr=RATE)
        except ImportError as error:
            raise NotApplicable(f"the release reads no sounds here: {error}") from None
        except Exception as error:
            return Result(True, f"{type(error).__name__}: {error}"[:160].replace(text, "..."))
        if samples.shape != (SAMPLES,):
            return Result(True, f"{samples.shape} samples for {SAMPLES}")
    return Result(False, f"{SAMPLES} samples")
