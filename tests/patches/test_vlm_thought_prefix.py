"""``vlm-thought-prefix``: markers of other models, and empty thoughts."""

from __future__ import annotations

import importlib

import pytest

from mlx_patches.core.distributions import source_file
from mlx_patches.patches import catalogue
from mlx_patches.patches.server.vlm_thought_prefix import patch as thought_prefix

PATCH = catalogue.builtin().get("vlm-thought-prefix")
pytestmark = pytest.mark.skipif(
    not source_file("mlx_vlm.server.responses_state"), reason="no such server here"
)


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
def test_a_thought_is_cleaned_of_its_marker_alone(reasoning, marker, wanted, ungated):
    ungated(PATCH)
    module = importlib.import_module("mlx_vlm.server.responses_state")
    assert module._clean_reasoning(reasoning, marker) == wanted


def thoughts_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thought_prefix, "without_word", lambda reasoning, start_marker: reasoning)


MUTANTS = {"vlm-thought-prefix": thoughts_as_they_come}
