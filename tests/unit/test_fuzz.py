import pytest

from mlx_patches.core import model_files
from tests.fuzz import loader


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_no_input_of_a_short_run_is_taken_badly(seed):
    tried, failed = loader.search(seconds=30, seed=seed, count=300)
    assert (tried, failed) == (300, [])


@pytest.mark.slow
@pytest.mark.parametrize("error", [RecursionError, KeyError])
def test_fuzzer_finds_fault(monkeypatch, error):
    def broken(*arguments):
        raise error

    monkeypatch.setattr(model_files, "_ids", broken)
    _, failed = loader.search(seconds=60, seed=1, count=400)
    assert failed
    assert all(error.__name__ in problem for _, _, problem in failed)


def test_fuzzer_finds_slow_input(monkeypatch):
    monkeypatch.setattr(loader, "SLOW", 0.0)
    _, failed = loader.search(seconds=30, seed=1, count=5)
    assert [problem.startswith("took ") for _, _, problem in failed] == [True] * 5
