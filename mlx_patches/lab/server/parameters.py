"""The parameters of the matrix: what is sent, and which answers are right; see parameters.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from . import judges
from .client import Answer, Request
from .judges import Sent
from .oracle import BREAK, CONTEXT, LOOP, PONDER, RING, TELL, USE, WRITE
from .pictures import spell

# The fault of the answers, empty if they are right.
Judge = Callable[[Sequence[Answer], Sent], str]
TABLE = tomllib.loads((Path(__file__).parent / "parameters.toml").read_text())
# The adapters' folders in that of the other model, named so in a request, and the prefix of their
# tensors: those of mlx-lm and of mlx-vlm.
ADAPTERS = {"lm-adapter": "", "vlm-adapter": "language_model."}
PROMPTS = {
    "ring": RING[0] + RING[5],
    # Every token of the context counts.
    "conversation": "".join(CONTEXT[i] for i in (3, 14, 7, 30, 22, 9)),
    # Loop words long before the end and at it: each sight gives another greedy path.
    "loop": "".join((LOOP[1], *RING[10:34], LOOP[0])),
    "picture": spell(0) + CONTEXT[12] + CONTEXT[25],
    "another picture": spell(1) + CONTEXT[12] + CONTEXT[25],
    "two pictures": spell(2, 1) + CONTEXT[12] + CONTEXT[25],
    **{word.strip(): RING[0] + word for word in (TELL, USE, BREAK, PONDER, WRITE)},
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "f",
            "description": "f",
            "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}},
        },
    }
]


@dataclass(frozen=True)
class Parameter:
    """One parameter; see parameters.toml.

    ``model``: the model that is named in the request, empty for the served one.
    """

    name: str
    requests: tuple[Request, ...]
    judge: Judge
    plain: Request
    is_plain: Judge
    ignored: Judge
    endpoints: Sequence[str]
    contexts: Sequence[str]
    model: str
    stream_only: bool

    def is_ignored(self, answers: Sequence[Answer], sent: Sent) -> bool:
        """Whether the answers are those of requests without the parameter."""
        return not self.ignored(answers, sent)


def make_request(
    sent: Mapping[str, Any] | None = None, prompt: str = "ring", tokens: int = 40
) -> Request:
    fields = {"temperature": 0, **(sent or {})}
    return Request(
        (PROMPTS[prompt],), fields | ({"tools": TOOLS} if "tools" in fields else {}), tokens
    )


def parameters(other: str, images: bool = False) -> list[Parameter]:
    """The matrix's parameters; some need the folder of another model, or a model with images."""
    needs = {"model": other, "adapters": other, "picture": images, "two pictures": images}
    return [_parameter(name, other, row) for name, row in TABLE.items() if needs.get(name, True)]


def _parameter(name: str, other: str, row: Mapping[str, Any]) -> Parameter:
    shape = {key: row[key] for key in ("prompt", "tokens") if key in row}
    plain = {"judge": "greedy", **row.get("plain", {})}
    is_plain = _judge(plain.pop("judge"), plain.pop("want", {}))
    return Parameter(
        name,
        tuple(make_request(_place(sent, other), **shape) for sent in row.get("sent", [{}])),
        _judge(row["judge"], row.get("want", {})),
        make_request(**plain),
        is_plain,
        _judge(row["ignored"]) if "ignored" in row else is_plain,
        row.get("endpoints", "chat completions").split(),
        row.get("contexts", ()),
        other if name == "model" else "",
        row.get("only_streamed", False),
    )


def _place(sent: Mapping[str, Any], other: str) -> dict[str, Any]:
    """The fields of a request, with the paths of adapters."""
    return {key: f"{other}/{v}" if str(v) in ADAPTERS else v for key, v in sent.items()}


def _judge(name: str, want: Mapping[str, Any] | None = None) -> Judge:
    return partial(getattr(judges, f"judge_{name}"), **(want or {}))
