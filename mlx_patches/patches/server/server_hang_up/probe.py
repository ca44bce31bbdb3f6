"""Answers the request of a client that hangs up."""

import socket

from ....probes.kit import Result, Target, module_of, require
from ....probes.lm_server import (
    CHAT,
    make_context,
    make_generator,
    make_handler,
    make_response,
    send,
)

_TOKENS = 9


def probe(target: Target) -> Result:
    """Red if the whole answer is generated."""
    require(target)
    left = count_unread(module_of(target), stream=False)
    return Result(not left, f"{_TOKENS - left} of {_TOKENS} tokens are generated")


def count_unread(module: object, *, stream: bool, hang_up: bool = True) -> int:
    """The number of tokens that are not read from the generator."""
    responses = [make_response(module, token, "a") for token in range(_TOKENS)]
    handler = make_handler(module, make_generator(module, make_context(module), responses), CHAT)
    handler.connection, client = socket.socketpair()
    with handler.connection, client:
        if hang_up:
            client.close()
        send(handler, stream=stream)
        return min(int(handler.response_generator.answer.qsize()), _TOKENS)
