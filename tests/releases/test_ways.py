"""Every way of starting a host patches it, as in the table of docs/activation.md."""

import pytest

from . import ways
from .conftest import is_installed

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not is_installed("mlx-lm"), reason="no mlx_lm.server here"),
]


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    return ways.Environment(tmp_path_factory.mktemp("environment"))


def test_activation_table_is_current(environment):
    assert ways.table(environment) == ways.block(ways.PAGE.read_text())
