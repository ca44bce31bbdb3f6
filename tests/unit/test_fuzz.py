import pytest

from tests.fuzz import loader


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_no_input_of_a_short_run_is_taken_badly(seed):
    tried, failed = loader.search(seconds=30, seed=seed, count=300)
    assert (tried, failed) == (300, [])
