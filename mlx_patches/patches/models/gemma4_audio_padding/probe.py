"""Encodes a short and a long sound together and each by itself; counts the tokens of sounds."""

from types import SimpleNamespace
from typing import Any

from ....probes.kit import (
    Result,
    Target,
    compare_arrays,
    import_module,
    module_of,
    mx,
    own_class_of,
    require_module,
)

LENGTHS, BANDS = (40, 96), 128
# Samples, 160 for each frame.
SAMPLES = range(2000, 6000, 97)


def probe(target: Target) -> Result:
    """Red if a sound has more tokens than frames, or other features than by itself."""
    if target.name.endswith("_num_tokens"):
        return probe_tokens(own_class_of(target))
    module = module_of(target)
    config = import_module(module.AudioConfig.__module__).AudioConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        subsampling_conv_channels=[BANDS, 2],
        output_proj_dims=8,
    )
    mx.random.seed(0)
    encoder = module.AudioEncoder(config)
    sounds = mx.random.normal((len(LENGTHS), max(LENGTHS), BANDS), key=mx.random.key(0))

    def encode(rows: Any, *lengths: int) -> Any:
        frames = mx.arange(max(lengths))
        padding = frames >= mx.array(lengths)[:, None]
        rows = mx.where(padding[..., None], 0, rows[:, : max(lengths)])
        features, _ = encoder(rows, padding)
        return features.reshape(-1, features.shape[-1])

    solo = mx.concatenate([encode(sounds[i : i + 1], length) for i, length in enumerate(LENGTHS)])
    together = encode(sounds, *LENGTHS)[: len(solo)]
    return compare_arrays(together, solo, 1e-4, "audio features'")


def probe_tokens(kind: Any) -> Result:
    features = require_module("mlx_vlm.models.gemma4.audio_feature_extractor")
    extractor = features.Gemma4AudioFeatureExtractor(fft_overdrive=False)
    processor = SimpleNamespace(
        feature_extractor=extractor, audio_ms_per_token=40, audio_seq_length=750
    )
    off = 0
    for length in SAMPLES:
        sound = require_module("numpy").zeros(length, "float32")
        (mask,) = extractor([sound])["input_features_mask"]
        counted = kind._compute_audio_num_tokens(processor, sound, extractor.sampling_rate)
        off += counted != len(mask[mask][::2][::2])
    return Result(off > 0, f"{off} of {len(SAMPLES)} sounds have more tokens than features")
