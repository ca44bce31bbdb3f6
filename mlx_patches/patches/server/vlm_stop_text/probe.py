"""Feeds the server's generator an answer with the stop string of a chat request."""

from collections.abc import Iterable
from typing import Any

from ....probes.kit import Result, Target, import_module, own_class_of
from ....probes.stop_text import PIECES, STOP, check_stop
from ....probes.vlm_server import make_silent_generator


def probe(target: Target) -> Result:
    """Red if the answer goes on after the stop string, or lacks text before it."""
    own_class_of(target)
    tokens, cancelled = generate_answer(PIECES, stop=STOP)
    return check_stop((token.text for token in tokens), cancelled)


def generate_answer(texts: Iterable[str], **sent: Any) -> tuple[list[Any], list[Any]]:
    """The tokens of an answer with these texts to a chat request, and the cancelled rows.

    The last one ends the answer at its limit.
    """
    server: Any = import_module("mlx_vlm.server")
    generator = make_silent_generator(texts)
    messages = [{"role": "user", "content": "hi"}]
    request = server.ChatRequest.model_validate({"model": "m", "messages": messages, **sent})
    _, tokens = generator.generate("hi", args=server._build_gen_args(request))
    return list(tokens), generator.cancelled
