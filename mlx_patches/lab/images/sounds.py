"""The test sounds."""

from __future__ import annotations

import wave
from pathlib import Path
from typing import Any

from . import pictures, published

RATE = 16000


def find_cases(one: published.Json) -> list[str]:
    """The cases with sounds for an entry, if its models have an audio part."""
    audio = one.get("audio") or {"longest": 0}
    longest = audio.get("longest", float("inf"))
    return [name for name, case in pictures.SOUNDS.items() if max(case.sounds) <= longest]


def save(folder: Path, case: str, seed: int = 0) -> list[str]:
    """Write the sounds of a case once; returns their paths."""
    paths = []
    for place, length in enumerate(pictures.find(case).sounds):
        path = folder / f"{case.replace(' ', '-')}-{place}-{seed}.wav"
        if not path.exists():
            with wave.open(str(path), "wb") as file:
                file.setparams((1, 2, RATE, 0, "NONE", ""))
                file.writeframes(draw(length, place + seed).tobytes())
        paths.append(str(path))
    return paths


def draw(length: int, seed: int) -> Any:
    """A rising tone with pauses, and noise."""
    import numpy as np

    time = np.arange(length) / RATE
    tone = np.sin(2 * np.pi * (200 + 90 * seed + 300 * time) * time) * (np.sin(9 * time) > -0.5)
    noise = np.random.default_rng(seed).normal(0, 0.02, length)
    return np.clip((0.4 * tone + noise) * 32767, -32768, 32767).astype("<i2")


def read(path: str) -> Any:
    """The samples of a sound, between -1 and 1."""
    import numpy as np

    with wave.open(path) as file:
        return np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / 32768
