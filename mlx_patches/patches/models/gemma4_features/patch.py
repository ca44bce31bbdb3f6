"""Gemma 4 in mlx-vlm 0.4.3: images and sounds are misread, and some images crash.

Why: The tower pools the padding of an image into its first feature. Features are normalized after
    the projection instead of before it, and multiplied with the text by the root of the width.
    Images of other sizes are joined to an array. On a CPU, rows that attend to nothing are NaN.
    A sound's frames begin half a frame late, and end in padding. Their window is another one, and
    the mel floor is a limit instead of being added.
How: Padding is set to 0, the norm comes first, the factor is divided out, each image runs through
    the tower, and masks are finite. Sounds are padded by half a frame, and their mask is read where
    frames end; window and floor are those of the model's authors.
Upstream: mlx-vlm 0.4.4 repairs the features, 0.5.0 images of other sizes, masks and sounds.
Retire when: No supported release is older than mlx-vlm 0.5.
"""

from copy import copy
from typing import Any

from ....core.verbs import Function, Patch, argument, mx, wrap

_TOWER = "mlx_vlm.models.gemma4.vision"
_SOUNDS = "mlx_vlm.models.gemma4.audio_feature_extractor"
# mlx-vlm 0.5 hides padding by this number.
HIDDEN = -1e4


def clear_padding(hidden_states: Any, padding_positions: Any) -> Any:
    return mx.where(padding_positions[..., None], 0, hidden_states)


def limit_mask(mask: Any) -> Any:
    return mask if mask is None else mx.maximum(mask, HIDDEN)


def project(call: Function, embedder: Any, inputs_embeds: Any) -> Any:
    """Features that the language model multiplies by the root of its width."""
    norm = getattr(embedder, "embedding_post_projection_norm", None)
    if norm is None:
        return call(embedder, inputs_embeds)
    projected = embedder.embedding_projection(norm(inputs_embeds))
    return projected / projected.shape[-1] ** 0.5


def read_each(call: Function, tower: Any, pixel_values: Any) -> Any:
    """The features of each image, joined."""
    if not isinstance(pixel_values, list):
        return call(tower, pixel_values)
    return mx.concatenate([call(tower, add_axis(one)) for one in pixel_values], axis=1)


def add_axis(image: Any) -> Any:
    image = mx.array(image)
    return image if image.ndim == 4 else image[None]


class Added:
    """A floor that ``numpy.maximum`` adds to a spectrogram."""

    def __init__(self, floor: float):
        self.floor = floor

    def __array_ufunc__(self, ufunc: Any, method: str, mel: Any, *_: Any) -> Any:
        return mel + self.floor


def extract(call: Function, extractor: Any, waveform: Any, attention_mask: Any) -> Any:
    """The frames of a sound (1, samples); the centre of the first is the first sample."""
    import numpy as np

    if not extractor.window[0]:  # the release repairs them
        return call(extractor, waveform, attention_mask)
    mended, half = copy(extractor), extractor.frame_length // 2
    mended.window = make_window(extractor.frame_length)
    mended.mel_floor = Added(extractor.mel_floor)
    frames, mask = call(mended, np.pad(waveform, ((0, 0), (half, 0))), attention_mask[half:])
    return frames * mask[:, None], mask


def make_window(length: int) -> Any:
    """The periodic Hann window."""
    import numpy as np

    return np.hanning(length + 1)[:-1].astype(np.float32)


PATCH = Patch(
    id="gemma4-features",
    every_model=True,
    wrong_solo="gemma4",
    targets=(
        *argument(f"{_TOWER}:VisionPooler.__call__", "hidden_states", clear_padding),
        *argument(
            f"{_TOWER}:VisionAttention.__call__",
            "mask",
            limit_mask,
            fingerprint_of=("VisionModel.__call__",),
        ),
        *wrap(f"{_TOWER}:VisionModel.__call__", read_each),
        *wrap("mlx_vlm.models.gemma4.gemma4:MultimodalEmbedder.__call__", project),
        *wrap(f"{_SOUNDS}:Gemma4AudioFeatureExtractor._extract_spectrogram", extract),
    ),
)
