"""Gives the server's generator an answer that has the stop string of a chat request."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any

from ....core.patch import Target
from ....probes import NotApplicable, Result
from ....probes.stop_text import PIECES, STOP, judged
from ....probes.vlm_server import silent


def probe(target: Target) -> Result:
    """Red where the answer goes on after the stop string, or the text before it is not whole."""
    module, name = importlib.import_module(target.module), target.name.partition(".")[0]
    if getattr(getattr(module, name, None), "__module__", "") != target.module:
        raise NotApplicable(f"this release does not define {name} there")
    tokens, cancelled = answer(PIECES, stop=STOP)
    return judged((token.text for token in tokens), cancelled)


def answer(pieces: Iterable[str], **sent: Any) -> tuple[list[Any], list[Any]]:
    """The tokens of an answer in these pieces to a chat request, and the rows that were cancelled.

    The last piece ends the answer by its length.
    """
    server: Any = importlib.import_module("mlx_vlm.server")
    generator = silent(pieces)
    messages = [{"role": "user", "content": "hi"}]
    request = server.ChatRequest.model_validate({"model": "m", "messages": messages, **sent})
    _, tokens = generator.generate("hi", args=server._build_gen_args(request))
    return list(tokens), generator.cancelled
