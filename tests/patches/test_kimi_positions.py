"""``kimi-positions``: a table is resized as in PyTorch, along each of its axes."""

import pytest

from ..releases.models import module_or_skip

# A smoothed table is left to the release.
SKIPPED = {"kimi-positions": ((None,), {"size": (3, 3), "align_corners": False, "antialias": True})}
TABLE = [0.0, 1.0, 4.0, 2.0, -3.0]
# What ``torch.nn.functional.interpolate(..., mode="bicubic")`` of PyTorch 2.13 makes of the table.
RESIZED = [
    [4.0],
    [0.14815, 4.0, -1.53704],
    [-0.09283, 0.18756, 1.19574, 3.39484, 3.99939, 2.3136, -1.01245, -3.46417],
]


@pytest.mark.parametrize(("dtype", "off"), [("float32", 1e-4), ("bfloat16", 0.05)])
@pytest.mark.parametrize("axes", ["rows", "columns"])
@pytest.mark.parametrize("wanted", RESIZED)
def test_table_is_resized_as_in_torch(wanted, axes, dtype, off, ungated):
    mx = pytest.importorskip("mlx.core")
    kernels = module_or_skip("mlx_vlm.models.kernels")
    ungated("kimi-positions")
    line = mx.array(TABLE, getattr(mx, dtype))
    # Two images with two channels each: a channel's table is a multiple of the line.
    table = mx.arange(1, 5, dtype=line.dtype).reshape(2, 2, 1, 1) * line[:, None]
    size, order = (len(wanted), 1), (0, 1, 2, 3)
    if axes == "columns":
        size, order = size[::-1], (0, 1, 3, 2)
    found = kernels.bicubic_interpolate(table.transpose(order), size=size)
    assert found.dtype == table.dtype
    for number, one in enumerate(found.reshape(4, -1).astype(mx.float32).tolist(), 1):
        assert [value / number for value in one] == pytest.approx(wanted, abs=off)
