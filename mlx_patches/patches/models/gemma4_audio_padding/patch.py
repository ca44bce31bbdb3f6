"""Gemma 4 in mlx-vlm: wrong audio features if a prompt has sounds of unequal length.

Why: The encoder pads all sounds of a prompt to the longest. The embedding step spreads its output
    over the audio tokens in order, the padding included: from the end of a shorter sound on, every
    token gets the features of another place.
How: The encoder returns the sounds one after another, without padding.
Upstream: Not fixed in mlx-vlm 0.7.10, whose Gemma 4 Unified drops the padding.
Retire when: The embedding step drops the padding.
"""

from typing import Any

from ....core.verbs import Patch, mx, result


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


PATCH = Patch(
    id="gemma4-audio-padding",
    every_model=True,
    changes_solo=True,
    targets=result("mlx_vlm.models.gemma4.audio:AudioEncoder.__call__", drop_padding),
)
