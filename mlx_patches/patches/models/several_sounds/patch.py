"""Gemma 4, Qwen3-Omni, Nemotron, Inkling in mlx-vlm: a prompt with two sounds raises or loses one.

Why: ``prepare_inputs`` keeps the first sound of a prompt and prints a warning. The prompt still
    has a token for each: the processor raises, or features of one sound stand for both. Processors
    and models of these families read several sounds.
How: The list of sounds that ``prepare_inputs`` receives counts as one sound.
Upstream: mlx-vlm 0.7.3 passes all sounds to processors that have ``supports_multiple_audio``.
Retire when: No supported release is older than the first whose processors have it.
"""

from typing import Any

from ....core.verbs import Patch, argument

# The processors, and those that inherit from them.
PROCESSORS = {
    *("Gemma4Processor", "Qwen3OmniMoeProcessor"),
    *("NemotronHNanoOmniProcessor", "InklingProcessor"),
}


class Sounds(list[Any]):
    """A list that counts as one sound, so that it is not cut."""

    def __len__(self) -> int:
        return min(super().__len__(), 1)


def count_as_one(audio: Any) -> Sounds:
    return Sounds(audio)


def has_several_sounds(processor: Any, audio: Any) -> bool:
    """Whether a processor that reads several sounds gets them."""
    if not isinstance(audio, list) or len(audio) < 2:
        return False
    return any(kind.__name__ in PROCESSORS for kind in type(processor).__mro__)


PATCH = Patch(
    id="several-sounds",
    every_model=True,
    severity="crash",
    targets=argument(
        "mlx_vlm.utils:prepare_inputs", "audio", count_as_one, when=has_several_sounds
    ),
)
