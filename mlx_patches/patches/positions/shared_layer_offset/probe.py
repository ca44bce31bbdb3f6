"""Feeds a tiny Gemma 3n or Gemma 4 one row in one call, in chunks, and token by token."""

from ....probes.kit import TOLERANCE, Result, Target, compare_splits, module_of, tiny_of

# Shorter than the window, beyond which older releases of mlx-vlm also have a mask defect.
_LENGTH = 7


def probe(target: Target) -> Result:
    """Red if the last token's logits depend on how the text is split."""
    module_of(target)
    worst = compare_splits(tiny_of(target), ((_LENGTH,), (5, 2), (2, 1, 4), (1,) * _LENGTH))
    detail = f"largest logit difference between whole and chunked prompts: {worst:.3g}"
    return Result(not worst <= TOLERANCE, detail, worst)
