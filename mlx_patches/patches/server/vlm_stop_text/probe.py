"""Feeds the server's generator an answer with the stop string of a chat request."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any

from ....core.patch import Target
from ....probes import NotApplicable, Result
from ....probes.stop_text import PIECES, STOP, judged
from ....probes.vlm_server import silent


def probe(target: Target) -> Result:
    """Red if the answer goes on after the stop string, or lacks text before it."""
    module, name = importlib.import_module(target.module), target.name.partition(".")[0]
    if getattr(getattr(module, name, None), "__module__", "") != target.module:
        raise NotApplicable(f"this release does not define {name} there")
    tokens, cancelled = generate_answer(PIECES, stop=STOP)
    return judged((token.text for token in tokens), cancelled)


def generate_answer(texts: Iterable[str], **sent: Any) -> tuple[list[Any], list[Any]]:
    """The tokens of an answer with these texts to a chat request, and the cancelled rows.

    The last one ends the answer at its limit.
    """
    server: Any = importlib.import_module("mlx_vlm.server")
    generator = silent(texts)
    messages = [{"role": "user", "content": "hi"}]
    request = server.ChatRequest.model_validate({"model": "m", "messages": messages, **sent})
    _, tokens = generator.generate("hi", args=server._build_gen_args(request))
    return list(tokens), generator.cancelled
