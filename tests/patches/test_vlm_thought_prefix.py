import pytest

from ..releases.models import module_or_skip


@pytest.mark.parametrize(
    ("reasoning", "marker", "wanted"),
    [
        ("<think>the\n", "<think>", "the"),
        ("<|channel>thought\nto be\n", "<|channel>thought", "to be"),
        ("thoughthat\n", "<|channel>thought", "hat"),
        ("", "<|channel>thought", ""),
        ("thought\n", "<|channel>thought", ""),
        ("  got it", "<|channel>thought", "got it"),
    ],
)
def test_only_marker_is_removed(reasoning, marker, wanted, ungated):
    module = module_or_skip("mlx_vlm.server.responses_state")
    ungated("vlm-thought-prefix")
    assert module._clean_reasoning(reasoning, marker) == wanted
