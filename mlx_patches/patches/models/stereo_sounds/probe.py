"""Loads stereo files of several sample rates."""

import tempfile
from pathlib import Path

from ....probes.kit import NotApplicable, Result, Target, make_sound, require_own

RATE, SECONDS = 16000, 0.5


def probe(target: Target) -> Result:
    """Red if a sound's length depends on the sample rate of its file."""
    load = require_own(target)
    want = round(RATE * SECONDS)
    with tempfile.TemporaryDirectory() as folder:
        for rate in (RATE, 44100, 8000):
            try:
                samples = load(write_sound(Path(folder, f"{rate}.wav"), rate), sr=RATE)
            except ImportError as error:
                raise NotApplicable(f"the release reads no sounds here: {error}") from None
            if samples.shape != (want,):
                return Result(True, f"{rate} Hz: {samples.shape} samples for {want}")
            if not abs(samples[100:-100].mean() - 0.25) < 1e-2:
                return Result(True, f"{rate} Hz: not the mean of both channels")
    return Result(False, f"{want} samples, whatever the file's rate")


def write_sound(path: Path, rate: int) -> str:
    """A file of two channels, one of which is silent."""
    path.write_bytes(make_sound(b"\x00\x40\x00\x00" * round(rate * SECONDS), rate, channels=2))
    return str(path)
