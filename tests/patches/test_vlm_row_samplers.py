"""``vlm-row-samplers``: rows of one batch keep their samplers as they join and leave."""

from types import SimpleNamespace

import mlx.core as mx
import pytest

from mlx_patches.core.distributions import source_file
from mlx_patches.patches.server.vlm_row_samplers import patch
from mlx_patches.patches.server.vlm_row_samplers.patch import RowSamplers, Sampling
from mlx_patches.patches.server.vlm_row_samplers.probe import read_answer, start
from mlx_patches.probes.vlm_server import running

from ..releases.models import module_or_skip

needs_server = pytest.mark.skipif(
    not source_file("mlx_vlm.server.generation"), reason="no such server here"
)
GREEDY = Sampling(None, (0, None), 0)


class Positioned:
    """A sampler that records its calls and returns each row's id."""

    def __init__(self):
        self.calls = []

    def sample_target(self, logprobs, *, row_ids, positions):
        self.calls.append((logprobs.shape, row_ids, positions))
        return mx.array(row_ids, mx.uint32)


def test_one_call_per_sampler():
    hot, seeded = Positioned(), Positioned()
    rows = [
        Sampling(hot, (1.0, None), 0),
        GREEDY,
        Sampling(seeded, (1.0, 7), 0),
        Sampling(Positioned(), (1.0, None), 0),  # the same settings: the first one's sampler
    ]
    logprobs = mx.zeros((4, 8))
    logprobs[1, 5] = 1.0
    sampled = RowSamplers([10, 11, 12, 13], rows).sample_target(
        logprobs, row_ids=[0] * 4, positions=[1, 2, 3, 4]
    )
    assert sampled.tolist() == [10, 5, 0, 13]
    assert hot.calls == [((2, 8), [10, 13], [1, 4])]
    assert seeded.calls == [((1, 8), [0], [3])]


def test_same_sampler_reads_logprobs_unchanged():
    row = Sampling(lambda logprobs: logprobs, (1.0, None), 0)
    logprobs = mx.zeros((2, 8))
    assert RowSamplers([0, 1], [row, row])(logprobs) is logprobs


def test_rows_leave_and_join():
    first, second, third = (Sampling(Positioned(), (1.0, n), n) for n in range(3))
    batch = SimpleNamespace(
        uids=[0, 1],
        sampler=RowSamplers([0, 1], [first, second]),
        _next_tokens=mx.zeros(2),
        _next_lps=mx.ones(2),
        _next_top_idx=None,
        _next_top_lp=None,
    )
    other = SimpleNamespace(
        uids=[2],
        sampler=RowSamplers([2], [third]),
        _next_tokens=mx.zeros(1),
        _next_lps=mx.ones(1),
        _next_top_idx=mx.ones((1, 2)),
        _next_top_lp=mx.ones((1, 2)),
    )
    patch.join_rows(batch, other)
    assert batch.sampler.rows == [first, second, third]
    assert batch._next_top_lp.shape == (2, 2)
    assert (batch.compute_logprobs, batch.top_logprobs_k, batch.greedy_sampling) == (True, 1, False)
    batch.uids = [1]
    patch.keep_rows(batch, [1])
    assert batch.sampler.rows == [second]
    assert batch.top_logprobs_k == 0
    batch.uids = []
    patch.keep_rows(batch, [])
    assert batch.sampler.rows == []


@needs_server
def test_rows_join_and_leave_in_the_server(ungated):
    server = module_or_skip("mlx_vlm.server")
    ungated("vlm-row-samplers")
    sent = [
        {"temperature": 0.0},
        {"temperature": 1.5, "seed": 3},
        {"temperature": 0.8, "seed": 3, "top_p": 0.9},
        {"temperature": 0.0, "logprobs": True},
        {"temperature": 1.5, "seed": 4, "repetition_penalty": 1.3},
    ]
    solo = []
    for settings in sent:
        with running(top_logprobs_k=2) as generator:
            solo.append(read_answer(start(server, generator, settings), settings))
    with running(top_logprobs_k=2) as generator:
        started = [
            start(server, generator, settings, 16 + 8 * n) for n, settings in enumerate(sent)
        ]
        answers = [
            read_answer(one, settings)[:16] for one, settings in zip(started, sent, strict=True)
        ]
    assert answers == solo


@needs_server
def test_unseeded_rows_draw_differently(ungated):
    server = module_or_skip("mlx_vlm.server")
    ungated("vlm-row-samplers", "vlm-fresh-seed")
    with running() as generator:
        started = [start(server, generator, {"temperature": 1.5}) for _ in range(4)]
        answers = {tuple(read_answer(one, {})) for one in started}
    assert len(answers) == 4


@pytest.mark.parametrize(
    ("sent", "wanted"),
    [({}, 0), ({"logprobs": True}, 1), ({"logprobs": True, "top_logprobs": 3}, 21)],
)
def test_first_server_computes_the_logprobs_of_a_request(sent, wanted, ungated):
    if source_file("mlx_vlm.server.generation"):
        pytest.skip("this server passes the logprobs of a request")
    server = module_or_skip("mlx_vlm.server", "_build_gen_args")
    ungated("vlm-row-samplers")
    request = server.ChatRequest(messages=[{"role": "user", "content": "a"}], model="m", **sent)
    assert server._build_gen_args(request).logits_processors.sampling.logprobs == wanted
