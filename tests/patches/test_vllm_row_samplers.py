"""``vllm-row-samplers``: rows keep their settings; equal rows share one call."""

import pytest

from mlx_patches.core.distributions import source_file
from mlx_patches.patches.vllm_mlx.vllm_row_samplers.probe import generate
from mlx_patches.probes.vllm_scheduler import Server, build_llama

pytestmark = pytest.mark.skipif(not source_file("vllm_mlx.scheduler"), reason="no vllm-mlx here")
GREEDY, HOT = {"temperature": 0.0}, {"temperature": 2.0, "top_p": 1.0, "top_k": 5}


def batch_of(server):
    return server.scheduler.batch_generator._generation_batch


def start(server, **settings):
    server.add([3, 7, 11], max_tokens=64, **settings)
    for _ in range(3):
        server.scheduler.step()


def test_equal_rows_have_no_sampler_of_their_own(ungated):
    ungated("vllm-row-samplers")
    server = Server(build_llama())
    for _ in range(3):
        start(server, **HOT)
    assert batch_of(server).samplers == [None] * 3
    start(server, **GREEDY)
    *equal, other = batch_of(server).samplers
    assert equal == [None] * 3
    assert other is not None


def test_running_generator_is_kept(ungated, caplog):
    ungated("vllm-row-samplers")
    server = Server(build_llama())
    start(server, **HOT)
    generator = server.scheduler.batch_generator
    start(server, **GREEDY)
    assert server.scheduler.batch_generator is generator
    assert len(batch_of(server)) == 2
    assert "Sampling parameters changed" not in caplog.text


def test_idle_generator_is_made_anew(ungated):
    ungated("vllm-row-samplers")
    server = Server(build_llama())
    server.answer([3, 7, 11], **HOT)
    generator = server.scheduler.batch_generator
    server.answer([3, 7, 11], **HOT)
    assert server.scheduler.batch_generator is generator
    greedy = server.answer([3, 7, 11], **GREEDY)
    assert server.scheduler.batch_generator is not generator
    assert greedy == generate(build_llama(), [GREEDY])[0][: len(greedy)]


def test_penalty_of_one_row_leaves_the_other(ungated):
    ungated("vllm-row-samplers", "processor-rows")
    model = build_llama()
    penalized = {**GREEDY, "presence_penalty": 1000.0}
    solo = [generate(model, [settings])[0] for settings in (GREEDY, penalized)]
    assert generate(model, [GREEDY, penalized]) == solo
    assert generate(model, [penalized, GREEDY]) == solo[::-1]
