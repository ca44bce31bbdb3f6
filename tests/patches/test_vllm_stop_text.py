"""``vllm-stop-text``: both engines of vllm-mlx, streamed and not."""

import asyncio
import importlib

import pytest

from mlx_patches.core.distributions import source_file
from mlx_patches.patches.vllm_mlx.vllm_requests import stops as patch
from mlx_patches.probes.vllm_engine import make_engine, stream

pytestmark = pytest.mark.skipif(not source_file("vllm_mlx.engine"), reason="no vllm-mlx here")
WHOLE = "one, two, END, three and on"


@pytest.fixture(params=["batched:BatchedEngine", "simple:SimpleEngine"])
def engine(request):
    module, _, name = request.param.partition(":")
    return make_engine(getattr(importlib.import_module(f"vllm_mlx.engine.{module}"), name))


@pytest.mark.parametrize(
    ("stop", "wanted"),
    [(["END"], "one, two, "), (["x", "o, E"], "one, tw"), (["on"], ""), (["d on"], WHOLE[:-4])],
)
def test_answer_ends_at_first_stop_string(stop, wanted, engine, ungated):
    ungated("vllm-stop-text")
    outputs = asyncio.run(stream(engine, stop=stop))
    assert "".join(one.new_text for one in outputs) == wanted
    assert [one.finished for one in outputs] == [*[False] * (len(outputs) - 1), True]
    assert outputs[-1].finish_reason == "stop"
    whole = asyncio.run(engine.generate("hi", stop=stop))
    assert (whole.text.strip(), whole.finish_reason) == (wanted.strip(), "stop")


@pytest.mark.parametrize("stop", [None, [], [""], ["##", "on##"], [5]])
def test_answer_without_its_stop_string_is_unchanged(stop, engine, ungated):
    ungated("vllm-stop-text")
    outputs = asyncio.run(stream(engine, stop=stop))
    assert "".join(one.new_text for one in outputs) == WHOLE
    assert outputs[-1].finish_reason == "length"
    assert not engine.closed


def ignore_stops(monkeypatch):
    monkeypatch.setattr(patch, "find_stops", lambda stop: [])


MUTANTS = {"vllm-stop-text": ignore_stops}
