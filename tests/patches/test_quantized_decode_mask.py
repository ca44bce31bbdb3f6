"""A broken version of ``quantized-decode-mask``: with it the probe must be red."""

from __future__ import annotations

import pytest

from mlx_patches.patches.masks.quantized_decode_mask import patch as quantized_decode_mask


def masks_in_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantized_decode_mask, "holds_quantized", lambda cache: False)


MUTANTS = {"quantized-decode-mask": masks_in_a_word}
