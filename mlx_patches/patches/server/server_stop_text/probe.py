"""Feeds the server's generator an answer with the stop string in other tokens."""

from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

from ....probes.kit import Result, Target, module_with
from ....probes.lm_server import make_context, make_generator, make_response
from ....probes.stop_text import PIECES, STOP, check_stop


def probe(target: Target) -> Result:
    """Red if the answer goes on after the stop string, or lacks text before it."""
    responses, context = generate_answer(module_with(target), PIECES, [STOP])
    return check_stop((response.text for response in responses), context._should_stop)


def generate_answer(
    module: Any, texts: Iterable[str], stops: Sequence[str]
) -> tuple[list[Any], Any]:
    """The responses to a request whose answer has these texts, and its context.

    The last one ends the answer at its limit.
    """
    texts = list(texts)
    reasons = [None] * (len(texts) - 1) + ["length"]
    answers = [
        make_response(module, token, text, finish_reason=reason)
        for token, (text, reason) in enumerate(zip(texts, reasons, strict=True))
    ]
    generator = make_generator(module, make_context(module), answers)
    args = SimpleNamespace(stop_words=list(stops))
    found, responses = generator.generate(None, args)
    return list(responses), found
