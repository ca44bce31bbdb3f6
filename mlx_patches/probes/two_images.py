"""Compares two images in one prompt with each image in a separate prompt."""

from typing import Any

from .kit import NotApplicable, Result, Target, mx, require_own, tiny_of

TOLERANCE = 1e-4


def probe(target: Target) -> Result:
    """Red if a tiny model embeds an image differently next to another one."""
    from ..lab.image_scenarios import whole_of
    from ..lab.whole import embed_prompt

    require_own(target)
    whole = whole_of(tiny_of(target))
    if whole.images.most < 2:
        raise NotApplicable("a prompt has one image at most")
    halves = [1, 2, *whole.tokens, 3], [4, *whole.tokens, 5, 6]
    seeds = [1], [2]

    def embed(tokens: list[int], drawn: list[int]) -> dict[str, Any]:
        return embed_prompt(whole.module, tokens, whole.images.inputs(tokens, drawn))

    solo = [embed(*half) for half in zip(halves, seeds, strict=True)]
    try:
        both = embed(halves[0] + halves[1], seeds[0] + seeds[1])
    except Exception as error:
        return Result(True, f"two images fail: {type(error).__name__}: {error}")
    worst = 0.0
    for name in ("inputs_embeds", "deepstack_visual_embeds"):  # (rows, tokens, ...)
        if hasattr(both.get(name), "shape"):
            expected = mx.concatenate([half[name] for half in solo], axis=1)
            worst = max(worst, mx.abs(both[name] - expected).max().item())
    detail = f"embeddings beside another image differ by {worst:.2g} from those in a prompt each"
    return Result(worst > TOLERANCE, detail, worst)
