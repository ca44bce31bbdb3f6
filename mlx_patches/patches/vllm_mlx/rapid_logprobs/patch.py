"""Rapid-MLX: logprobs are missing for tokens without text, or the answer ends with an error.

Why: A chunk without text, such as the first token of a character, gets no log-probabilities. With
    suffix decoding or a draft, those of the accepted tokens are lazy: the event loop's thread
    evaluates them, and raises "There is no Stream in current thread". Outputs that wait for a slow
    reader are merged, and keep only the last log-probabilities.
How: A chunk whose tokens belong to the answer is read as if it had text. For a request with
    log-probabilities, the engine's thread evaluates those of a step, whose tokens it has already
    read, and merged outputs have them all.
Upstream: Not fixed in Rapid-MLX 0.16.10.
Retire when: Each token has its log-probabilities, in all ways of decoding.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from ....core.verbs import Patch, after, argument, before, mx, result
from ..._shared.request_fields import FIELDS

_COLLECTOR = "rapid_mlx.output_collector:RequestOutputCollector"


def lacks_text(chunk: Any) -> bool:
    """Whether the tokens of a chunk are the answer's, and have no text yet."""
    return not (chunk.new_text or (chunk.finished and chunk.finish_reason == "stop"))


def add_text(chunk: Any) -> Any:
    """A copy of a chunk with a text, which only marks that it has tokens."""
    return replace(chunk, new_text=" ") if chunk.tokens else chunk


def note_request(made: Any, /) -> None:
    """Note whether the request whose task makes this has log-probabilities."""
    sent = FIELDS.get({}).get("logprobs")
    made.has_logprobs = sent is not None and sent is not False  # a completion may send 0


def evaluate_logprobs(scheduler: Any, responses: Iterable[Any], /) -> None:
    """Evaluate the log-probabilities that a request has, in the thread that made them."""
    for one in responses:
        request = scheduler.requests.get(scheduler.uid_to_request_id.get(one.uid))
        if request and getattr(request.sampling_params, "has_logprobs", False):
            mx.eval(one.logprobs)


def join_logprobs(merged: Any, collector: Any, existing: Any, new: Any, /) -> Any:
    """The merged output, with the log-probabilities of each token."""
    if getattr(collector, "has_logprobs", False):
        merged.logprobs = [*list_logprobs(existing), *list_logprobs(new)] or None
    return merged


def list_logprobs(output: Any) -> list[Any]:
    """The log-probabilities of an output, one per token of the answer."""
    found = output.logprobs
    if found is None or (output.finish_reason == "stop" and not output.new_text):
        return []
    return (found if isinstance(found, list) else [found])[: len(output.new_token_ids)]


PATCH = Patch(
    id="rapid-logprobs",
    targets=(
        *argument(
            "rapid_mlx.service.helpers:_extract_streaming_token_logprobs",
            "chunk",
            add_text,
            when=lacks_text,
        ),
        *before("rapid_mlx.scheduler:Scheduler._process_batch_responses", evaluate_logprobs),
        *after(
            (f"{_COLLECTOR}.__init__", "rapid_mlx.request:SamplingParams.__post_init__"),
            note_request,
            supports=True,
        ),
        *result(f"{_COLLECTOR}._merge_outputs", join_logprobs),
    ),
)
