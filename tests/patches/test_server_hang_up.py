"""``server-hang-up``: clients that stay, that leave in the queue, or during a request."""

import socket
from queue import Queue
from types import SimpleNamespace

import pytest

from mlx_patches.patches.server.server_hang_up import patch
from mlx_patches.patches.server.server_hang_up.probe import count_unread

from ..releases.models import module_or_skip

BOTH = pytest.mark.parametrize("stream", [False, True])


@pytest.fixture
def server(ungated):
    """The release's server, patched."""
    found = module_or_skip("mlx_lm.server", "ResponseGenerator")
    ungated("server-hang-up")
    return found


@pytest.fixture
def sockets():
    """The server's socket and the client's."""
    pair = socket.socketpair()
    yield pair
    for one in pair:
        one.close()


@BOTH
def test_client_that_stays_gets_its_answer(stream, server):
    assert count_unread(server, stream=stream, hang_up=False) == 0


@BOTH
def test_client_that_hangs_up(stream, server):
    assert count_unread(server, stream=stream) > 0


def test_client_with_unread_data_is_not_gone(sockets):
    mine, client = sockets
    assert not patch.is_gone(mine)
    client.sendall(b"more")
    assert not patch.is_gone(mine)
    mine.recv(4)
    client.close()
    assert patch.is_gone(mine)
    mine.close()
    assert patch.is_gone(mine)


def test_queued_request_is_refused(sockets):
    mine, client = sockets
    patch.refuse_gone(None, None, SimpleNamespace(client=mine))
    client.close()
    with pytest.raises(ConnectionAbortedError, match="hung up"):
        patch.refuse_gone(None, None, SimpleNamespace(client=mine))
    patch.refuse_gone(None, None, SimpleNamespace())


def test_single_request_ends_in_its_prompt(sockets):
    mine, client = sockets
    queue = Queue()
    answers, *_ = patch.watch_client((queue, SimpleNamespace(client=mine), None))
    answers.put((1, 2))
    client.close()
    with pytest.raises(ConnectionAbortedError):
        answers.put((2, 2))
    answers.put(None)
    assert list(queue.queue) == [(1, 2), None]


def test_progress_ends_the_wait(sockets):
    mine, client = sockets
    stopped = []

    def generate(generator, request, args, progress_callback):
        def read():
            progress_callback(1, 2)
            yield "a"

        return SimpleNamespace(stop=lambda: stopped.append(1)), read()

    client.close()
    _, responses = patch.end_with_client(generate, None, SimpleNamespace(client=mine), None)
    assert (list(responses), stopped) == ([], [1])


def test_reader_that_leaves_stops_the_generation():
    stopped = []
    responses = patch.read_for(None, iter("abc"), lambda: stopped.append(1))
    assert next(responses) == "a"
    responses.close()
    assert stopped == [1]
    assert list(patch.read_for(None, iter("abc"), lambda: stopped.append(1))) == list("abc")
    assert stopped == [1]
