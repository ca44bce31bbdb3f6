"""A model's answers to one request after another, without server, batch or prompt cache.

python -m tests.hosts.exact MODEL < REQUESTS > ANSWERS

A request is [prompt, fields]; the fields are the completion request's fields for logits processors.
The answers are the reference if a release gets even a request alone wrong.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from .server import TOKENS

# The number of tokens that mlx-lm's penalty covers by default.
CONTEXT = 20


def processed(logits: list[float], tokens: list[int], fields: dict[str, Any]) -> list[float]:
    """The next token's logits after a request's processors; ``tokens`` are all tokens before it."""
    logits = list(logits)
    for token, bias in fields.get("logit_bias", {}).items():
        logits[int(token)] += bias
    if penalty := fields.get("repetition_penalty"):
        for token in set(tokens[-CONTEXT:]):
            logits[token] = logits[token] * penalty ** (1 if logits[token] < 0 else -1)
    return logits


def said(model: Any, tokenizer: Any, prompt: str, fields: dict[str, Any]) -> str:
    """The greedy completion of a prompt."""
    import mlx.core as mx
    from mlx_lm.models.cache import make_prompt_cache

    tokens = new = tokenizer.encode(prompt)
    length, cache = len(tokens), make_prompt_cache(model)
    while len(tokens) < length + TOKENS:
        logits = processed(model(mx.array([new]), cache)[0, -1].tolist(), tokens, fields)
        new = [max(range(len(logits)), key=logits.__getitem__)]
        if new[0] in tokenizer.eos_token_ids:
            break
        tokens = tokens + new
    return str(tokenizer.decode(tokens[length:])).strip()


def main(folder: Path) -> None:
    from mlx_lm import load

    model, tokenizer = load(str(folder))[:2]
    requests = json.load(sys.stdin)
    json.dump([said(model, tokenizer, *request) for request in requests], sys.stdout)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
