"""Gemma 4 in mlx-vlm: one token too many for a quarter of all sounds; two sounds of one prompt mix.

Why: A sound gets a token for each begun 40 ms, but the encoder's frames end earlier: one of four
    sounds ends with a token without features. The encoder pads all sounds of a prompt to the
    longest. The embedding step spreads its output over the audio tokens in order, the padding
    included: from the end of a shorter sound on, every token gets the features of another place.
How: The feature extractor counts the frames of a sound's last samples; four are a token. The
    encoder returns the sounds one after another, without padding.
Upstream: Not fixed in mlx-vlm 0.7.10, whose Gemma 4 Unified drops the padding.
Retire when: The processor counts the encoder's frames, and the embedding step drops the padding.
"""

from typing import Any

from ....core.verbs import Patch, mx, result

# The encoder halves the frames twice.
FRAMES = 4


def drop_padding(encoded: Any, /) -> Any:
    """The encoder's output, with several sounds joined along the frames."""
    features, padding = encoded
    if len(features) == 1:  # its padding comes last, and is not used
        return encoded
    lengths = count_frames(padding)
    joined = mx.concatenate([row[:end] for row, end in zip(features, lengths, strict=True)])
    return joined[None], mx.zeros((1, len(joined)), mx.bool_)


def count_frames(padding: Any) -> Any:
    """The number of frames of each sound."""
    return (~padding).sum(axis=1).tolist()


def count_tokens(counted: int, processor: Any, /, audio_waveform: Any) -> int:
    """The tokens of a sound, of which only the last samples are extracted."""
    extractor = processor.feature_extractor
    if not hasattr(extractor, "hop_length"):  # the samples are the features
        return counted
    samples = FRAMES * extractor.hop_length
    left = max(len(audio_waveform) // samples - FRAMES, 0)
    (mask,) = extractor([audio_waveform[left * samples :]])["input_features_mask"]
    tokens: int = left + divide_up(int(mask.sum()))
    return min(counted, tokens)


def divide_up(frames: int) -> int:
    """The tokens of a number of frames."""
    return -(-frames // FRAMES)


PATCH = Patch(
    id="gemma4-audio-padding",
    every_model=True,
    changes_solo=True,
    targets=(
        *result("mlx_vlm.models.gemma4.audio:AudioEncoder.__call__", drop_padding),
        *result(
            "mlx_vlm.models.gemma4.processing_gemma4:Gemma4Processor._compute_audio_num_tokens",
            count_tokens,
        ),
    ),
)
