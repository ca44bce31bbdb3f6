"""Feeds the server's generator answers with the stop string of a request."""

from collections.abc import Iterable
from typing import Any

from ....probes.kit import Result, Target, import_module, own_class_of
from ....probes.stop_text import PIECES, STOP, check_stop
from ....probes.vlm_server import make_silent_generator


def probe(target: Target) -> Result:
    """Red if the answer goes on after the stop string, or lacks text before it."""
    own_class_of(target)
    tokens, cancelled = generate_answer(PIECES, stop=STOP)
    found = check_stop((token.text for token in tokens), cancelled)
    if found.red or not has_messages():
        return found
    tokens, cancelled = generate_answer(PIECES, "AnthropicRequest", stop_sequences=[STOP])
    return check_stop((token.text for token in tokens), cancelled)


def has_messages() -> bool:
    """Whether the release has ``/v1/messages``."""
    return hasattr(import_module("mlx_vlm.server"), "AnthropicRequest")


def generate_answer(
    texts: Iterable[str], kind: str = "ChatRequest", prompt: str = "hi", **sent: Any
) -> tuple[list[Any], list[Any]]:
    """The tokens of an answer with these texts to a request, and the cancelled rows.

    The last one ends the answer at its limit.
    """
    server: Any = import_module("mlx_vlm.server")
    generator = make_silent_generator(texts)
    messages = [{"role": "user", "content": "hi"}]
    body = {"model": "m", "max_tokens": 9, "messages": messages, **sent}
    request = getattr(server, kind).model_validate(body)
    _, tokens = generator.generate(prompt, args=server._build_gen_args(request))
    return list(tokens), generator.cancelled
