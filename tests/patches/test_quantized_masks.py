import mlx.core as mx
import pytest

from mlx_patches.core.packages import package_of
from mlx_patches.patches.masks.quantized_masks import patch as quantized_masks

from ..releases.models import module_or_skip

NAME = "quantized_scaled_dot_product_attention"


@pytest.fixture
def base(distribution):
    return module_or_skip(f"{package_of(distribution)}.models.base", NAME)


def attend(base, mask, rows=3, heads=4, groups=2):
    drawn = [mx.random.normal((rows, n, 6, 32), key=mx.random.key(n)) for n in (heads, groups)]
    packed = mx.quantize(drawn[1], group_size=32, bits=8)
    queries = drawn[0][:, :, -2:] + 0
    return getattr(base, NAME)(queries, packed, packed, scale=0.2, mask=mask, group_size=32, bits=8)


@pytest.mark.parametrize("mask", [None, "causal", "array"])
@pytest.mark.parametrize("heads", [2, 4])
def test_right_results_are_bit_identical(base, ungated, mask, heads):
    if mask == "array":
        mask = mx.arange(6)[None] <= mx.arange(4, 6)[:, None]
    before = attend(base, mask, rows=1, heads=heads).tolist()
    ungated("quantized-masks")
    assert attend(base, mask, rows=1, heads=heads).tolist() == before


def test_masks_of_any_kind(base, ungated):
    ungated("quantized-masks")
    padding = mx.array([0, 2, 3])
    seen = (mx.arange(6)[None] >= padding[:, None])[:, None, None]
    seen = mx.broadcast_to(seen, (3, 1, 2, 6))
    numbers = mx.where(seen, 0.0, -1e9)
    assert mx.allclose(attend(base, seen), attend(base, numbers), atol=1e-5).item()
    ungated("quantized-masks")
    causal = mx.arange(6)[None] <= mx.arange(4, 6)[:, None]
    every = mx.broadcast_to(causal, (3, 1, 2, 6))
    assert mx.allclose(attend(base, causal), attend(base, every), atol=1e-6).item()


def test_single_row_mask_is_unchanged():
    """A solo run gets no additional graph node: its mask broadcasts over groups of heads."""
    mask = mx.ones((1, 1, 2, 6), mx.bool_)
    assert quantized_masks.add_group_axis(mask, 2) is mask
    packed = mx.quantize(mx.ones((1, 2, 6, 32)), group_size=32, bits=8)
    seen = quantized_masks.attend(
        lambda *args: args[4], mx.ones((1, 4, 2, 32)), packed, packed, 1.0, mask
    )
    assert seen is mask


def masks_of_the_first_row(monkeypatch: pytest.MonkeyPatch) -> None:
    add_shape = quantized_masks.add_shape
    monkeypatch.setattr(quantized_masks, "add_group_axis", lambda mask, groups: mask[:1, None])
    as_before = quantized_masks.attend_as_before.__code__
    monkeypatch.setattr(quantized_masks.make_padded_mask, "__code__", as_before)
    monkeypatch.setattr(
        quantized_masks, "add_shape", lambda parts, width: add_shape(parts, width // 8)
    )


MUTANTS = {"quantized-masks": masks_of_the_first_row}
