import gc
import weakref
from queue import Queue
from types import SimpleNamespace

import pytest

from mlx_patches.patches.server.server_batch_error.patch import Taken, restart_after_errors


def a_server(**more):
    return SimpleNamespace(requests=Queue(), taken=[], **more)


def take(server):
    request = server.requests.get_nowait()
    server.taken.append(request[1])
    if isinstance(request[1], Exception):
        raise request[1]


def until_empty(server):
    while not server.requests.empty():
        take(server)


def test_batch_gets_error_and_next_is_served():
    server, answers = a_server(), [Queue() for _ in range(4)]
    for answer, request in zip(
        answers, ["first", "second", ValueError("bad"), "next"], strict=True
    ):
        server.requests.put((answer, request))
    restart_after_errors(until_empty, server)
    assert server.taken[-1] == "next"
    errors = [answer.get_nowait() for answer in answers[:3]]
    assert [str(error) for error in errors] == ["bad"] * 3
    assert all(error.__traceback__ is None for error in errors)
    assert answers[3].empty()
    assert "get" not in vars(server.requests)


def test_unread_answer_is_dropped():
    server, answer = a_server(), Queue()
    seen = weakref.ref(answer)
    server.requests.put((answer, "request"))
    del answer

    def loop(server):
        take(server)
        gc.collect()
        assert seen() is None

    restart_after_errors(loop, server)


@pytest.mark.parametrize("stop", [[5], 5, [["a"]], [None]])
def test_invalid_stop_fails_only_its_request(stop):
    requests, answers = Queue(), [Queue() for _ in range(3)]
    for answer, words in zip(answers, [["a"], stop, []], strict=True):
        requests.put((answer, "request", SimpleNamespace(stop_words=words)))
    taken = Taken()
    assert [taken.get(requests.get, block=False)[0] for _ in range(2)] == [answers[0], answers[2]]
    assert [answer.qsize() for answer in answers] == [0, 1, 0]
    assert "stop must be" in str(answers[1].get_nowait())


@pytest.mark.parametrize("requests", [0, 1])
def test_server_fault_ends_thread(requests):
    """A model that cannot be loaded; and several machines, which would no longer be in step."""
    server = a_server(_is_distributed=bool(requests))
    for _ in range(requests):
        server.requests.put((Queue(), "request"))

    def loop(server):
        until_empty(server)
        raise OSError("no such model")

    with pytest.raises(OSError, match="no such model"):
        restart_after_errors(loop, server)
    assert "get" not in vars(server.requests)


def test_error_right_after_restart_ends_thread():
    server = a_server()
    server.requests.put((Queue(), ValueError("bad")))

    def loop(server):
        if server.taken:
            raise OSError("no model")
        take(server)

    with pytest.raises(OSError, match="no model"):
        restart_after_errors(loop, server)
