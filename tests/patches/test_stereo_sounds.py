import numpy as np
import pytest

from mlx_patches.patches.models.stereo_sounds import patch

HIGH, LOW = 44100, 16000


def load(file, sr):
    """Like mlx-vlm, whose own resampling must not run."""
    samples, rate = file
    if rate != sr:
        raise AssertionError("resampled before the mean")
    return samples.mean(axis=1) if samples.ndim > 1 else samples


@pytest.mark.parametrize("samples", [np.ones(4), np.array([[0.0, 2.0]] * 4)])
def test_mean_is_resampled(samples, monkeypatch):
    given = []
    monkeypatch.setattr(patch, "resample", lambda *args: given.append(args))
    patch.load_mean(load, (samples, HIGH), LOW)
    ((mean, own, sr),) = given
    assert (mean.tolist(), own, sr) == ([1.0] * 4, HIGH, LOW)


def test_file_with_the_wanted_rate_is_not_resampled():
    assert patch.load_mean(load, (np.ones(4), LOW), sr=LOW).tolist() == [1.0] * 4


def test_array_is_not_resampled():
    assert patch.load_mean(lambda file, sr: file, "samples", LOW) == "samples"
