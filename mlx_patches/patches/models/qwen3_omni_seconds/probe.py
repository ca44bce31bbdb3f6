"""Encodes a sound of a second and one that is longer than a window, together and by themselves."""

from typing import Any

from ....probes.kit import Result, Target, compare_arrays, module_of, mx, require_module

# The frames of a second, and the seconds of a window.
BANDS, SECOND, WINDOW = 16, 100, 8
# The tokens of a second, and of a sound that is longer than a window.
TOKENS = {SECOND: 13, 937: 9 * 13 + 5}


def probe(target: Target) -> Result:
    """Red if sounds have other numbers of tokens, or other features than each by itself."""
    module = module_of(target)
    config = require_module("mlx_vlm.models.qwen3_omni_moe.config").AudioConfig(
        num_mel_bins=BANDS,
        encoder_layers=1,
        encoder_attention_heads=2,
        encoder_ffn_dim=16,
        d_model=16,
        output_dim=8,
        downsample_hidden_size=4,
        n_window=SECOND // 2,
        n_window_infer=WINDOW * SECOND,
    )
    mx.random.seed(0)
    tower = module.AudioModel(config)
    brief, lasting = (mx.random.normal((BANDS, frames), key=mx.random.key(1)) for frames in TOKENS)

    def encode(*sounds: Any) -> Any:
        lengths = mx.array([sound.shape[1] for sound in sounds])
        return tower(mx.concatenate(sounds, axis=1), lengths)

    together = encode(lasting, brief)
    if len(together) != sum(TOKENS.values()):
        return Result(True, f"{len(together)} features for {sum(TOKENS.values())} tokens")
    # What follows a window sees nothing of it.
    loud = mx.where(mx.arange(lasting.shape[1]) < SECOND, 9 * lasting, lasting)
    window = WINDOW * TOKENS[SECOND]
    apart = mx.concatenate([encode(lasting)[:window], encode(loud)[window:], encode(brief)])
    return compare_arrays(together, apart, 1e-4, "audio features'")
