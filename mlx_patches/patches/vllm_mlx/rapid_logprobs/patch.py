"""Rapid-MLX: logprobs lack the tokens without text, or end the answer with an engine error.

Why: A chunk without text, such as the first token of a character, gets no log-probabilities. With
    suffix decoding or a draft, those of the accepted tokens are lazy: the event loop's thread
    evaluates them, and raises "There is no Stream in current thread".
How: A chunk whose tokens belong to the answer is read as if it had text. The engine's thread
    evaluates the log-probabilities of a step, whose tokens it has already read.
Upstream: Not fixed in Rapid-MLX 0.16.10.
Retire when: Each token has its log-probabilities, in all ways of decoding.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from ....core.verbs import Patch, argument, before, mx


def lacks_text(chunk: Any) -> bool:
    """Whether the tokens of a chunk are the answer's, and have no text yet."""
    return not (chunk.new_text or (chunk.finished and chunk.finish_reason == "stop"))


def add_text(chunk: Any) -> Any:
    """A copy of a chunk with a text, which only marks that it has tokens."""
    return replace(chunk, new_text=" ") if chunk.tokens else chunk


def evaluate_logprobs(responses: Iterable[Any]) -> None:
    """Evaluate the log-probabilities of a step in the thread that made them."""
    mx.eval([one.logprobs for one in responses if one.logprobs is not None])


PATCH = Patch(
    id="rapid-logprobs",
    every_model=True,
    targets=(
        *argument(
            "rapid_mlx.service.helpers:_extract_streaming_token_logprobs",
            "chunk",
            add_text,
            when=lacks_text,
        ),
        *before("rapid_mlx.scheduler:Scheduler._process_batch_responses", evaluate_logprobs),
    ),
)
