"""A model's answers to single requests, without server, batch or prompt cache.

python -m tests.hosts.exact MODEL [PACKAGE] < REQUESTS > ANSWERS

A request is [prompt, fields]; `max_tokens` and the fields for logits processors count. The answers
are the reference if a release gets even a single request wrong. Of an mlx-vlm model only the
language model runs.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

from .server import TOKENS

# The number of tokens that mlx-lm's penalty covers by default.
CONTEXT = 20


def process_logits(logits: list[float], tokens: list[int], fields: dict[str, Any]) -> list[float]:
    """The next token's logits after a request's processors; ``tokens`` are all tokens before it."""
    logits = list(logits)
    for token, bias in fields.get("logit_bias", {}).items():
        logits[int(token)] += bias
    if penalty := fields.get("repetition_penalty"):
        for token in set(tokens[-CONTEXT:]):
            logits[token] = logits[token] * penalty ** (1 if logits[token] < 0 else -1)
    return logits


def complete(model: Solo, prompt: str, fields: dict[str, Any]) -> str:
    """The greedy completion of a prompt; an empty prompt stands for an end token."""
    end = model.tokenizer.eos_token_id
    tokens = new = model.tokenizer.encode(prompt) or [end]
    length, cache = len(tokens), model.make_cache()
    while len(tokens) < length + fields.get("max_tokens", TOKENS):
        logits = process_logits(model.logits(new, cache), tokens, fields)
        new = [max(range(len(logits)), key=logits.__getitem__)]
        if new[0] == end:
            break
        tokens = tokens + new
    return str(model.tokenizer.decode(tokens[length:])).strip()


class Solo:
    """A model of mlx-lm or mlx-vlm for single requests."""

    def __init__(self, folder: Path, package: str):
        name = package.replace("-", "_")
        self.caches = importlib.import_module(f"{name}.models.cache")
        self.model, self.tokenizer = importlib.import_module(name).load(str(folder))[:2]
        self.whole = package == "mlx-vlm"
        if self.whole:
            self.model, self.tokenizer = self.model.language_model, self.tokenizer.tokenizer

    def make_cache(self) -> list[Any]:
        if self.whole:
            # The positions of the last prompt, which is fed through the model around this one.
            self.model._position_ids = self.model._rope_deltas = None
        return list(self.caches.make_prompt_cache(self.model))

    def logits(self, tokens: list[int], cache: list[Any]) -> list[float]:
        import mlx.core as mx

        out = self.model(mx.array([tokens]), cache=cache)
        return list((out.logits if self.whole else out)[0, -1].tolist())


def main(folder: Path, package: str = "mlx-lm") -> None:
    model = Solo(folder, package)
    requests = json.load(sys.stdin)
    json.dump([complete(model, *request) for request in requests], sys.stdout)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
