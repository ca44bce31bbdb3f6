"""Gemma 4 12B (unified) in mlx-vlm: an image beside a sound is read causally.

Why: Tokens of one image attend both ways. The masks of releases up to 0.6 do not show an image if
    there is a sound. Later ones do, but a prompt with a sound is still fed in chunks, which get no
    such masks: even a short one is fed without its last token first.
How: Both read the types of the prompt's tokens, in which sounds now count as text.
Upstream: mlx-vlm issue 1727, repaired in the masks.
Retire when: ``_should_disable_chunked_prefill`` ignores sounds.
"""

from typing import Any

from ....core.verbs import Function, Patch, argument, mx, wrap

NAMES = ("mm_token_type_ids", "token_type_ids")
SOUND, TEXT = 3, 0


def hide_sounds(types: Any) -> Any:
    """The types of tokens, without those of sounds."""
    return None if types is None else mx.where(types == SOUND, TEXT, types)


def feed_whole(call: Function, model: Any, *args: Any, **more: Any) -> bool:
    """Whether a prompt is fed in one chunk, with or without a sound."""
    more.update((name, hide_sounds(more[name])) for name in NAMES if name in more)
    return bool(call(model, *args, **more))


def hide_in_masks(mm_token_type_ids: Any) -> Any:
    """The types of tokens by which masks are made."""
    return hide_sounds(mm_token_type_ids)


PATCH = Patch(
    id="unified-image-sounds",
    every_model=True,
    changes_solo=True,
    targets=(
        *wrap(
            "mlx_vlm.models.gemma4_unified.gemma4_unified:Model._should_disable_chunked_prefill",
            feed_whole,
        ),
        *argument(
            "mlx_vlm.models.gemma4.language:Gemma4TextModel._make_masks",
            "mm_token_type_ids",
            hide_in_masks,
        ),
    ),
)
