"""Stereo files with another sample rate in mlx-vlm 0.5 and 0.6: their speed changes.

Why: ``load_audio`` resamples the two channels into each other instead of the samples, and then
    takes their mean. A second of 44.1 kHz becomes 2.8 seconds, one of 8 kHz half a second.
How: The file is loaded with its own rate, and the mean of its channels is resampled.
Upstream: mlx-vlm 0.7 takes the mean first.
Retire when: No supported release is older than mlx-vlm 0.7.
"""

import importlib
from typing import Any

from ....core.verbs import Function, Patch, wrap


class AnyRate(int):
    """A sample rate that equals each file's. ``own``: the rate of the file that was loaded."""

    own: Any = 0

    def __ne__(self, other: object) -> bool:
        self.own = other
        return False

    __hash__ = int.__hash__


def load_mean(load: Function, file: Any, sr: int, *args: Any, **kwargs: Any) -> Any:
    """The samples of a sound, resampled after the mean of its channels was taken."""
    rate = AnyRate(sr)
    samples = load(file, rate, *args, **kwargs)
    return resample(samples, rate.own, sr) if rate.own not in (0, sr) else samples


def resample(samples: Any, own: int, sr: int) -> Any:
    utils = importlib.import_module("mlx_vlm.utils")
    if not hasattr(utils, "resample_audio"):  # from mlx-vlm 0.5 on
        utils = importlib.import_module("mlx_audio.utils")
    return utils.resample_audio(samples, own, sr)


PATCH = Patch(
    id="stereo-sounds",
    every_model=True,
    targets=wrap("mlx_vlm.utils:load_audio", load_mean),
)
