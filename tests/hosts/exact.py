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


def said(model: Alone, prompt: str, fields: dict[str, Any]) -> str:
    """The greedy completion of a prompt; one without tokens begins after another text's end."""
    end = model.tokenizer.eos_token_id
    tokens = new = model.tokenizer.encode(prompt) or [end]
    length, cache = len(tokens), model.make_cache()
    while len(tokens) < length + fields.get("max_tokens", TOKENS):
        logits = processed(model.logits(new, cache), tokens, fields)
        new = [max(range(len(logits)), key=logits.__getitem__)]
        if new[0] == end:
            break
        tokens = tokens + new
    return str(model.tokenizer.decode(tokens[length:])).strip()


class Alone:
    """A model as this module asks it, of mlx-lm or of mlx-vlm."""

    def __init__(self, folder: Path, package: str):
        name = package.replace("-", "_")
        self.caches = importlib.import_module(f"{name}.models.cache")
        self.model, self.tokenizer = importlib.import_module(name).load(str(folder))[:2]
        self.whole = package == "mlx-vlm"
        if self.whole:
            self.model, self.tokenizer = self.model.language_model, self.tokenizer.tokenizer

    def make_cache(self) -> list[Any]:
        """A new prompt's cache."""
        if self.whole:
            # The positions of the last prompt, which is fed through the model around this one.
            self.model._position_ids = self.model._rope_deltas = None
        return list(self.caches.make_prompt_cache(self.model))

    def logits(self, tokens: list[int], cache: list[Any]) -> list[float]:
        """Those of the token after these."""
        import mlx.core as mx

        out = self.model(mx.array([tokens]), cache=cache)
        return list((out.logits if self.whole else out)[0, -1].tolist())


def main(folder: Path, package: str = "mlx-lm") -> None:
    model = Alone(folder, package)
    requests = json.load(sys.stdin)
    json.dump([said(model, *request) for request in requests], sys.stdout)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
