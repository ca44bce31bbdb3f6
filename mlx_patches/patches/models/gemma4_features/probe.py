"""Runs parts of a tiny tower with padding, the projection, and the extractor of sounds."""

from importlib import import_module
from types import SimpleNamespace
from typing import Any

from ....probes.kit import (
    Result,
    Target,
    compare_arrays,
    module_of,
    mx,
    own_class_of,
    require_module,
)

SIDE, WIDTH = 4, 32
# Of a sound, which the extractor pads.
SAMPLES = 1200
FIELDS = {
    "hidden_size": WIDTH,
    "intermediate_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": WIDTH // 2,
    "patch_size": SIDE,
    "default_output_length": 4,
    "pooling_kernel_size": 2,
    "position_embedding_size": 16,
}


def probe(target: Target) -> Result:
    """Red if padding changes a feature or gives NaN, the norm comes last, or two images crash.

    Of sounds: if frames are at other samples, or have another window or floor.
    """
    mx.random.seed(0)
    kind = own_class_of(target)
    if "Extractor" in target.name:
        return probe_sounds(kind())
    if "Embedder" in target.name:
        found = kind(WIDTH, 2 * WIDTH)(mx.random.normal((1, 3, WIDTH)))
        scale = mx.sqrt(mx.mean(found * found)).item()
        return Result(abs(scale - 1) < 1e-3, f"the projected features have a scale of {scale:.2g}")
    if "Pooler" in target.name:
        return probe_pooler(kind)
    config = import_module("mlx_vlm.models.gemma4.config").VisionConfig(**FIELDS)
    tower = module_of(target).VisionModel(config)
    images = [mx.random.uniform(shape=(1, 3, rows * SIDE, 2 * SIDE)) for rows in (2, 4)]
    if "Attention" in target.name:
        missing = mx.isnan(tower(images[0])).any().item()
        return Result(bool(missing), f"features are NaN: {missing}")
    tokens = tower(images).shape[1]
    return Result(tokens != 3, f"two images have {tokens} features")


def probe_pooler(kind: Any) -> Result:
    pooler = kind(SimpleNamespace(hidden_size=WIDTH, default_output_length=2))
    real = mx.array([[[0, 0], [1, 0], [0, 1], [1, 1]]])
    places = mx.concatenate([real, mx.full(real.shape, -1)], axis=1)
    padding = mx.arange(8)[None] > 3
    seen = mx.random.normal((1, 4, WIDTH))
    first, second = (
        pooler(mx.concatenate([seen, fill], axis=1), places, padding)[0][:, 0]
        for fill in (mx.zeros(seen.shape), mx.ones(seen.shape))
    )
    return compare_arrays(second, first, 1e-5)


def probe_sounds(extractor: Any) -> Result:
    numpy = require_module("numpy")
    sound = numpy.random.default_rng(0).normal(0, 0.01, SAMPLES)
    length, hop = extractor.frame_length, extractor.hop_length
    padded = numpy.pad(sound, (length // 2, 0))
    window = 0.5 - 0.5 * numpy.cos(2 * numpy.pi * numpy.arange(length) / length)
    # The extractor reads one sample more, which it drops without preemphasis.
    starts = range(0, len(padded) - length, hop)
    frames = numpy.stack([padded[start : start + length] * window for start in starts])
    mel = abs(numpy.fft.rfft(frames, extractor.fft_length)) @ extractor.mel_filters
    wanted = numpy.log(mel + extractor.mel_floor)
    found = extractor([sound])
    (features,), (mask,) = found["input_features"], found["input_features_mask"]
    if mask.sum() != len(wanted) or features[~mask].any():
        return Result(True, f"{mask.sum()} frames of {len(wanted)}, or padding is not zero")
    return compare_arrays(mx.array(features[mask]), mx.array(wanted), 1e-3, "frames'")
