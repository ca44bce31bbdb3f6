from types import SimpleNamespace

import pytest

from mlx_patches.patches.server.vlm_thought_prefix import patch

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


@pytest.mark.parametrize(
    ("texts", "wanted"),
    [
        (["a", " b", ""], ["a", " b", ""]),
        (["<think>", "so", " it</think>", " 42", ""], ["<think>", "so", " it", "</think>", " 42"]),
        (["a<think>so", " it", ""], ["a", "<think>", "so it"]),
        (["so</think>42"], ["so", "</think>", "42"]),
        (["so</think>", "4", "2", "!"], ["so", "</think>", "42", "!"]),
    ],
)
def test_markers_are_tokens_of_their_own(texts, wanted):
    reasons = [None] * (len(texts) - 1) + ["stop"]
    tokens = [
        SimpleNamespace(text=text, finish_reason=reason)
        for text, reason in zip(texts, reasons, strict=True)
    ]
    found = list(patch.split_at_markers(tokens))
    assert [token.text for token in found] == wanted
    assert [token.finish_reason for token in found][-1] == "stop"
    assert not any(token.finish_reason for token in found[:-1])
