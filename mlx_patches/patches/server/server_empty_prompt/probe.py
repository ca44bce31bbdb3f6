"""Tokenizes an empty prompt with the server and a tokenizer that adds no tokens."""

import inspect
from types import SimpleNamespace

from ....probes.kit import Result, Target, require

_BEGIN, _END = 3, 4


def probe(target: Target) -> Result:
    """Red if the tokenized prompt is empty."""
    tokenize = require(target)
    request = SimpleNamespace(request_type="text", prompt="")
    rest = [request, None][: len(inspect.signature(tokenize).parameters) - 2]
    for begin, wanted in ((_BEGIN, [_BEGIN]), (None, [_END])):
        tokenizer = SimpleNamespace(encode=lambda text: [], bos_token_id=begin, eos_token_id=_END)
        out = tokenize(SimpleNamespace(), tokenizer, *rest)
        prompt, segments = out[:2] if isinstance(out, tuple) else (out, [out])
        if prompt != wanted or segments != [wanted]:
            return Result(True, f"the prompt is {prompt} in the segments {segments}")
    return Result(False, "an empty prompt becomes one token")
