"""Runs a request's processors over an answer without thinking, and over one with it."""

from types import SimpleNamespace
from typing import Any

from ....probes.kit import NotApplicable, Result, Target, import_module, mx, require_own

_THINK, _END, _OPEN, _TEXT = 1, 2, 5, 7
_VOCABULARY = 16
_TOKENS = {"<think>": _THINK, "</think>": _END}


def probe(target: Target) -> Result:
    """Red if the schema does not constrain the answer, or constrains the thinking."""
    require_own(target)
    if not hasattr(import_module("mlx_vlm.structured"), "ThinkingAwareLogitsProcessor"):
        raise NotApplicable("this release's schemas do not wait for the thinking")
    plain = constrain(target, [_OPEN, _OPEN])
    if plain != [True] * 3:
        return Result(True, f"without thinking, the schema constrains steps {plain}")
    thought = constrain(target, [_THINK, _TEXT, _END, _OPEN])
    if thought[1:] not in ([False, False, True, True], [True] * 4):  # 0.6 waits for a prompt's only
        return Result(True, f"with thinking, the schema constrains steps {thought}")
    opened = constrain(target, [_TEXT, _END, _OPEN], prompt=[3, _THINK])
    if opened != [False, False, True, True]:
        return Result(True, f"with thinking in the prompt, the schema constrains steps {opened}")
    return Result(False, "the schema constrains the answer, and not the thinking")


class Schema:
    """A schema that allows one token."""

    def __call__(self, tokens: Any, logits: Any) -> Any:
        """The logits with only that token."""
        return mx.where(mx.arange(_VOCABULARY) == _OPEN, logits, -mx.inf)

    def process_last_token(self, token: int, logits: Any) -> Any:
        return self(None, logits)

    def reset(self) -> None:
        """It has no state."""


def constrain(target: Target, answer: list[int], prompt: list[int] | None = None) -> list[bool]:
    """Whether the schema excludes other text before each token of an answer, and after it."""
    server: Any = import_module("mlx_vlm.server")
    kind = server.ResponseGenerator
    generator = kind.__new__(kind)
    generator.tokenizer = SimpleNamespace(encode=lambda text, **_: [_TOKENS[text]])
    args = server.GenerationArguments(enable_thinking=True, logits_processors=[Schema()])
    (processor,) = generator._make_logits_processors(args, mx.array([prompt or [3, 4]]))
    logits = mx.zeros((1, _VOCABULARY))
    rows = [processor(mx.array(prompt or [3, 4]), logits)]
    rows += [processor.process_last_token(token, logits) for token in answer]
    return [bool(mx.isinf(row[0, _TEXT])) for row in rows]
