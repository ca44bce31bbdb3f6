"""``vlm-hang-up``: an answer ends with its client, unless it is streamed or in the background."""

import asyncio
from types import SimpleNamespace

import pytest

from mlx_patches.core.distributions import source_file
from mlx_patches.patches.server.vlm_hang_up import patch
from mlx_patches.patches.server.vlm_hang_up.probe import _LENGTH, hang_up
from mlx_patches.probes.vlm_server import running

from ..releases.models import module_or_skip

pytestmark = pytest.mark.skipif(not source_file("mlx_vlm.server"), reason="no such server here")


@pytest.fixture
def kind():
    if not hasattr(pytest.importorskip("mlx_vlm.server"), "ResponseGenerator"):
        pytest.skip("this release's server has no ResponseGenerator")
    return module_or_skip("starlette.requests", "Request").Request


@pytest.mark.parametrize("sent", [{"stream": True}, {"background": True}])
def test_other_answers_are_not_watched(sent, kind, ungated):
    ungated("vlm-hang-up")
    with running() as generator:
        assert asyncio.run(hang_up(kind, generator, **sent)) == _LENGTH


def test_row_of_a_client_that_left_is_freed(kind, ungated):
    ungated("vlm-hang-up")
    with running() as generator:
        assert asyncio.run(hang_up(kind, generator)) < _LENGTH
        # The next answer is whole: the server generates it without the other row.
        assert asyncio.run(hang_up(kind, generator, stream=True)) == _LENGTH


def test_client_that_left_before_the_answer_begins():
    client, closed = patch.Client(), []
    client.leave()
    client.add(type("Tokens", (), {"close": lambda self: closed.append(1)})())
    assert closed == [1]


def test_only_an_unfinished_answer_is_cancelled():
    closed = []
    for reason in (None, "stop"):
        token = SimpleNamespace(finish_reason=reason)
        tokens = patch.Closable(iter([token]), lambda reason=reason: closed.append(reason))
        assert next(tokens) is token
        tokens.close()
    assert closed == [None]
