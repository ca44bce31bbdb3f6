from types import SimpleNamespace

import pytest

from mlx_patches.patches.vllm_mlx.vllm_billing_header import patch as billing_header

LINE = "x-anthropic-billing-header: cch=1;"


@pytest.mark.parametrize(
    ("system", "left"),
    [
        (f"{LINE}\nBe kind.", "Be kind."),
        (f"Be kind.\n{LINE}", "Be kind.\n"),
        (LINE.title(), ""),
        ("Say 'x-anthropic-billing-header: …'.", "Say 'x-anthropic-billing-header: …'."),
        (
            [{"type": "text", "text": LINE}, {"type": "text", "text": "A"}],
            [{"type": "text", "text": "A"}],
        ),
        ([f"{LINE}\nA", "B", {"type": "image"}], ["A", "B", {"type": "image"}]),
        (None, None),
        ("", ""),
    ],
)
def test_only_header_line_is_removed(system, left):
    assert billing_header.cut_line(system) == left


def test_other_requests_are_unchanged():
    request = SimpleNamespace(system="Be kind.")
    assert billing_header.remove_line(request) is request
