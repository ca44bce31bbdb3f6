"""``rapid-logprobs``: which chunks and merged outputs have log-probabilities."""

import importlib
from types import SimpleNamespace

import pytest

from mlx_patches.patches.vllm_mlx.rapid_logprobs import patch
from mlx_patches.patches.vllm_mlx.rapid_logprobs.probe import extract, process

from ..releases.models import module_or_skip


@pytest.mark.parametrize(
    ("count", "chunk"),
    [
        (1, {"finished": True, "finish_reason": "length"}),
        (0, {"finished": True, "finish_reason": "stop"}),
        (0, {"tokens": []}),
        (1, {"new_text": "w", "finished": True, "finish_reason": "stop"}),
    ],
)
def test_tokens_of_the_answer_have_logprobs(count, chunk, ungated):
    module_or_skip("rapid_mlx.service.helpers", "_extract_streaming_token_logprobs")
    mx = pytest.importorskip("mlx.core")
    ungated("rapid-logprobs")
    assert len(extract(mx.array([-1.0, -2.0, -0.5]), **chunk)) == count


def test_merged_outputs_have_one_row_per_token_of_the_answer():
    def make(text, reason, *tokens):
        return SimpleNamespace(
            logprobs="row", new_text=text, finish_reason=reason, new_token_ids=[*tokens]
        )

    collector, merged = SimpleNamespace(has_logprobs=True), SimpleNamespace(logprobs="row")
    first, stop, control = make("a", None, 1), make("", "stop", 0), make("", None)
    for second, count in ((first, 2), (stop, 1), (control, 1)):
        assert patch.join_logprobs(merged, collector, first, second).logprobs == ["row"] * count
    collector.has_logprobs, merged.logprobs = False, "row"
    assert patch.join_logprobs(merged, collector, first, first).logprobs == "row"


@pytest.mark.parametrize("wanted", [True, False])
def test_rows_are_evaluated_only_for_requests_that_want_them(wanted, ungated):
    module_or_skip("rapid_mlx.scheduler", "Scheduler")
    mx = pytest.importorskip("mlx.core")
    ungated("rapid-logprobs")
    evaluated, mp = [], pytest.MonkeyPatch()
    with mp.context() as context:
        context.setattr(mx, "eval", evaluated.append)
        process(importlib.import_module("rapid_mlx.scheduler").Scheduler, wanted)
    assert len(evaluated) == wanted
