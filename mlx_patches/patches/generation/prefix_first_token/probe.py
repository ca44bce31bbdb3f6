"""Processes a batch of right-padded prompts in chunks of two tokens."""

from collections.abc import Sequence
from typing import Any

from ....probes.kit import Result, Target, make_prompt_batch, mx, own_module, require_parameter

RESTS = ((1, 2, 3, 4, 5, 6), (7, 8, 9), (10,))
WORDS = 16


def probe(target: Target) -> Result:
    """Red if a row's first token is not chosen by the logits after its last token."""
    kind = own_module(target).PromptProcessingBatch
    require_parameter(kind.__init__, "right_pad_per_row")
    first = find_first_tokens(kind, RESTS)
    want = [rest[-1] for rest in RESTS]
    return Result(first != want, f"a model that repeats tokens continues {want} with {first}")


class Repeats:
    """A model whose most probable next token is its last one."""

    layers: tuple[()] = ()

    def __call__(self, tokens: Any, **kwargs: Any) -> Any:
        return mx.eye(WORDS)[tokens]


def find_first_tokens(
    kind: Any, rests: Sequence[Sequence[int]], size: int | None = 2, model: Any = None
) -> list[int]:
    longest = max(map(len, rests))
    padding = [longest - len(rest) for rest in rests]
    options = {"prefill_step_size": size, "right_pad_per_row": padding}
    batch = make_prompt_batch(kind, rests, model or Repeats(), **options)
    while batch.needs_processing():
        batch.prompt_step()
    chosen: list[Any] = []

    def choose(logprobs: Any) -> Any:
        chosen.append(mx.argmax(logprobs, axis=-1))
        return chosen[-1]

    batch.generate(choose, lambda token: False)
    return list(chosen[0].tolist())
