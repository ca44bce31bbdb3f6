import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from threading import Barrier

import httpx
import mlx.core as mx
import pytest

from mlx_patches.core.packages import package_of
from mlx_patches.lab.threads import in_a_thread
from tests.hosts.server import serving

from ..releases.conftest import is_installed
from ..releases.models import module_or_skip

SAMPLERS = {
    "temperature": {},
    "top_p": {"top_p": 0.9},
    "min_p": {"min_p": 0.1},
    "top_k": {"top_k": 20},
    "xtc": {"xtc_probability": 0.5, "xtc_threshold": 0.02},
    "all": {"top_p": 0.95, "min_p": 0.05, "top_k": 30, "xtc_probability": 0.5},
}
TOKENS, DRAWS = 64, 16


@pytest.fixture
def make_sampler(distribution):
    utils = f"{package_of(distribution)}.sample_utils"
    return module_or_skip(utils, "make_sampler").make_sampler


def draws(sampler, seed, number=DRAWS, wait=lambda: None):
    mx.random.seed(seed)
    logits = mx.arange(TOKENS) / 32
    logprobs = (logits - mx.logsumexp(logits))[None]
    tokens = []
    for _ in range(number):
        wait()
        tokens.append(sampler(logprobs).item())
    return tokens


# The others compile one kernel each, in seconds.
SOON = ("top_k", "all")


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=[] if one in SOON else pytest.mark.slow) for one in SAMPLERS]
)
def test_threads_draw_like_main_thread(name, make_sampler, ungated):
    sampler = make_sampler(temp=1.0, **SAMPLERS[name])
    before = [draws(sampler, seed) for seed in (1, 2)]
    manager = ungated("sampling-threads")
    assert [draws(sampler, seed) for seed in (1, 2)] == before
    assert [in_a_thread(lambda seed=seed: draws(sampler, seed)) for seed in (1, 2)] == before
    assert len(set(before[0])) > 4
    assert before[0] != before[1]
    manager.restore()
    assert [draws(sampler, seed) for seed in (1, 2)] == before


def test_thread_continues_its_sequence(make_sampler, ungated):
    sampler = make_sampler(temp=1.0)
    whole = draws(sampler, 1)
    ungated("sampling-threads")

    def halves():
        first = draws(sampler, 1, DRAWS // 2)
        logits = mx.arange(TOKENS) / 32
        logprobs = (logits - mx.logsumexp(logits))[None]
        return first + [sampler(logprobs).item() for _ in range(DRAWS // 2)]

    assert in_a_thread(halves) == whole


@pytest.fixture
def own_states():
    state = mx.random.state
    if isinstance(state, list) and in_a_thread(lambda: mx.random.state is state):
        pytest.skip("this MLX has one random state for all threads")


def test_threads_have_separate_state(make_sampler, own_states, ungated):
    sampler = make_sampler(temp=1.0, **SAMPLERS["all"])
    solo = [draws(sampler, seed) for seed in (1, 2, 3)]
    ungated("sampling-threads")
    step = Barrier(3, timeout=60)
    with ThreadPoolExecutor(2) as pool:
        others = [pool.submit(draws, sampler, seed, DRAWS, step.wait) for seed in (1, 2)]
        here = draws(sampler, 3, DRAWS, step.wait)
        assert [*(other.result() for other in others), here] == solo


def test_threads_leave_main_state(make_sampler, own_states, ungated):
    sampler = make_sampler(temp=1.0, **SAMPLERS["all"])
    whole = draws(sampler, 1)
    ungated("sampling-threads")

    def elsewhere():
        in_a_thread(lambda: draws(sampler, 2, 2))

    assert draws(sampler, 1, wait=elsewhere) == whole


@pytest.mark.slow
@pytest.mark.skipif(not is_installed("mlx-lm"), reason="no mlx_lm.server here")
def test_server_samples_by_request_seed(tmp_path):
    model = tmp_path / "model"
    subprocess.run([sys.executable, "-m", "tests.hosts.model", str(model), "llama"], check=True)
    case = {"command": "mlx_lm.server --model {model} --port {port} --host 127.0.0.1"}
    with serving(case, model, tmp_path / "log", patched=True) as host:

        def complete(**more):
            body = host.body("the quick brown fox", temperature=1.0, **more)
            response = httpx.post(f"{host.url}/v1/completions", json=body, timeout=60)
            return response.json()["choices"][0]["text"]

        # Some answers are empty: the first token may end the text.
        answers = list(islice(filter(None, (complete() for _ in range(16))), 4))
        assert len(set(answers)) == len(answers) == 4
        assert len({complete(seed=seed) for seed in (1, 2, 3)}) == 3
        assert complete(seed=1) == complete(seed=1)
