"""Encodes a short and a long sound together, and each by itself."""

from typing import Any

from ....probes.kit import Result, Target, compare_arrays, import_module, module_of, mx

LENGTHS, BANDS = (40, 96), 128


def probe(target: Target) -> Result:
    """Red if the long sound's features do not follow those of the short one."""
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
