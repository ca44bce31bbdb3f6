"""What a model says to one request after another: no server, no batch, no prompt that was cached.

python -m tests.hosts.exact MODEL [PACKAGE] < REQUESTS > ANSWERS

A request is [prompt, fields], as a completion's; of the fields, `max_tokens` counts, and those that
give it logits processors. This is the reference where a release gets a request wrong that comes
alone. Of mlx-vlm's models it asks the language model: text alone.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .server import TOKENS

# Of mlx-lm's penalty, where a request does not say it.
CONTEXT = 20


def processed(logits: list[float], tokens: list[int], fields: dict[str, Any]) -> list[float]:
    """The next token's logits after a request's processors; tokens are all those before it."""
    logits = list(logits)
    for token, bias in fields.get("logit_bias", {}).items():
        logits[int(token)] += bias
    if penalty := fields.get("repetition_penalty"):
        for token in set(tokens[-CONTEXT:]):
            logits[token] = logits[token] * penalty ** (1 if logits[token] < 0 else -1)
    return logits


def said(model: Any, tokenizer: Any, prompt: str, fields: dict[str, Any]) -> str:
    """The greedy completion of a prompt; one without tokens begins after another text's end."""
    import mlx.core as mx

    tokens = new = tokenizer.encode(prompt) or [tokenizer.eos_token_id]
    length, cache = len(tokens), model.make_cache()
    while len(tokens) < length + fields.get("max_tokens", TOKENS):
        logits = processed(model(mx.array([new]), cache)[0, -1].tolist(), tokens, fields)
        new = [max(range(len(logits)), key=logits.__getitem__)]
        if new[0] == tokenizer.eos_token_id:
            break
        tokens = tokens + new
    return str(tokenizer.decode(tokens[length:])).strip()


@dataclass(frozen=True)
class Alone:
    """A model as this module asks it: tokens and a cache, and the logits of each token."""

    make_cache: Callable[[], list[Any]]
    logits: Callable[[Any, list[Any]], Any]

    def __call__(self, tokens: Any, cache: list[Any]) -> Any:
        return self.logits(tokens, cache)


def loaded(folder: Path, package: str) -> tuple[Alone, Any]:
    """A saved model and its tokenizer."""
    name = package.replace("-", "_")
    cache = importlib.import_module(f"{name}.models.cache")
    model, tokenizer = importlib.import_module(name).load(str(folder))[:2]
    if package == "mlx-lm":
        return Alone(lambda: cache.make_prompt_cache(model), model), tokenizer
    text = model.language_model
    return (
        Alone(
            lambda: cache.make_prompt_cache(text),
            lambda tokens, caches: text(tokens, cache=caches).logits,
        ),
        tokenizer.tokenizer,
    )


def main(folder: Path, package: str = "mlx-lm") -> None:
    model, tokenizer = loaded(folder, package)
    requests = json.load(sys.stdin)
    json.dump([said(model, tokenizer, *request) for request in requests], sys.stdout)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
