"""Loads a sound that a request has in base64."""

import base64
import importlib
import io
import wave
from pathlib import Path

from ....probes.kit import NotApplicable, Result, Target, require_own

RATE, SAMPLES = 16000, 800


def probe(target: Target) -> Result:
    """Red if the content of a file is taken for its path."""
    load = require_own(target)
    server = importlib.util.find_spec("mlx_vlm.server")
    if server and server.submodule_search_locations:
        raise NotApplicable("the server decodes sounds")
    if not (server and server.origin and "input_audio" in Path(server.origin).read_text()):
        raise NotApplicable("the server takes no sounds")
    content = io.BytesIO()
    with wave.open(content, "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
        file.writeframes(b"\x00\x40" * SAMPLES)
    text = base64.b64encode(content.getvalue()).decode()
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
