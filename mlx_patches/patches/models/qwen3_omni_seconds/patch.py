"""Qwen3-Omni in mlx-vlm up to 0.7.2: wrong answers to sounds of whole seconds, or over 8 seconds.

Why: The audio tower lets frames attend to more than 8 seconds, counts a token too many if a sound
    lasts whole seconds, and takes wrong frames of all sounds after one of more than a second: it
    uses the lengths of whole sounds where those of their seconds belong. Single requests are wrong.
How: The tower encodes each second separately, and its layers attend in the windows of whole sounds.
Upstream: Repaired in mlx-vlm 0.7.10.
Retire when: No supported release is older than the first with this repair.
"""

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

from ....core.verbs import Function, Patch, argument, mx, result, support, wrap

_AUDIO = "mlx_vlm.models.qwen3_omni_moe.audio"
# The ends of the windows that frames attend to, while a tower runs.
_windows: ContextVar[Any] = ContextVar("mlx_patches_audio_windows", default=None)


def encode_seconds(
    call: Function, tower: Any, features: Any, feature_lens: Any = None, *args: Any
) -> Any:
    """The features of sounds; each second is encoded separately."""
    if feature_lens is None:
        return call(tower, features, feature_lens, *args)
    second = 2 * tower.n_window
    sounds = [cut(length, second) for length in feature_lens.tolist()]
    longest = max(count_tokens(part) for parts in sounds for part in parts)
    window = longest * (tower.n_window_infer // second)
    parts = [n for one in sounds for n in cut(sum(map(count_tokens, one)), window)]
    token = _windows.set(mx.cumsum(mx.array([0, *parts])))
    try:
        return call(tower, features, mx.array([part for parts in sounds for part in parts]), *args)
    finally:
        _windows.reset(token)


def cut(length: int, most: int) -> Sequence[int]:
    """The lengths of parts, of which only the last may be shorter than the most."""
    return [min(most, length - begin) for begin in range(0, length, most)]


def count_tokens(frames: int) -> int:
    """The tokens of frames up to a second, which three convolutions halve."""
    return -(-frames // 8)


def widen(cu_seqlens: Any) -> Any:
    """The windows of whole sounds, if a tower runs."""
    windows = _windows.get()
    return cu_seqlens if windows is None else windows


def count_whole(counted: Any, /, input_lengths: Any) -> Any:
    """The tokens of sounds; MLX rounds the division of a negative number up."""
    return mx.where(input_lengths % 100 == 0, input_lengths // 100 * 13, counted)


PATCH = Patch(
    id="qwen3-omni-seconds",
    every_model=True,
    changes_solo=True,
    targets=(
        *wrap(f"{_AUDIO}:AudioModel.__call__", encode_seconds),
        *support(
            *argument(f"{_AUDIO}:AudioEncoderLayer.__call__", "cu_seqlens", widen),
            *result(f"{_AUDIO}:_get_feat_extract_output_lengths", count_whole),
        ),
    ),
)
