import importlib

import pytest

from mlx_patches.core.distributions import source_file
from mlx_patches.patches.generation.draft_none.probe import decode

pytestmark = pytest.mark.skipif(not source_file("mlx_lm.generate"), reason="no mlx-lm here")
STEP = "speculative_generate_step"
# A generation without processors is left to the release.
SKIPPED = {"draft-none": ((), {"logits_processors": None, "num_draft_tokens": 2})}


@pytest.fixture
def module():
    return importlib.import_module("mlx_lm.generate")


@pytest.mark.parametrize("others", [(), ("processors-prompt",)])
def test_calls_have_the_answer_so_far(others, module, ungated):
    ungated("draft-none", *others)
    answer, calls = decode(module, STEP, num_draft_tokens=0)
    assert answer == [6, 7, 8, 9, 10, 11]
    assert calls == [[5, *answer[:place]] for place in range(6)]


def test_calls_with_drafts_are_unchanged(module, ungated):
    wanted = decode(module, STEP, num_draft_tokens=2)
    ungated("draft-none")
    assert decode(module, STEP, num_draft_tokens=2) == wanted
