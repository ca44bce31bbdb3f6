"""vllm-mlx: a request whose schema fails while it is generated aborts all running requests.

Why: A logits processor that raises, such as one whose grammar rejects a token, ends the step of the
    whole batch. The scheduler then drops its batch, and every running request fails with it.
How: A processor's error is kept, and its row goes on without it for one token. The request's next
    output then ends the answer with ``finish_reason: error``, and the row is aborted. The other
    rows are unchanged. A schema of which no grammar can be made is refused before it is generated.
Upstream: Not fixed in vllm-mlx 0.6.0.
Retire when: An error of a processor fails only its own request.
"""

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from ....core.verbs import Patch, after, refusal, wrap
from .outputs import BATCHED, name_arguments, take_last

logger = logging.getLogger("mlx_patches")


class Guarded:
    """A processor that keeps its error, and then changes nothing."""

    def __init__(self, processor: Callable[..., Any]):
        self.processor, self.error = processor, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.processor, name)

    def __call__(self, tokens: Any, logits: Any) -> Any:
        """The processor's logits, or the logits as they are."""
        try:
            return logits if self.error else self.processor(tokens, logits)
        except Exception as error:
            logger.error("mlx_patches: a request fails in its logits processor: %s", error)
            self.error = True
            return logits


def has_processors(logits_processors: Any) -> bool:
    """Whether a request has processors without a guard."""
    return not all(isinstance(one, Guarded) for one in logits_processors or ())


def guard(released: Callable[..., Any], engine: Any, *args: Any, **sent: Any) -> Any:
    """The outputs of a request whose processors are guarded."""
    sent = name_arguments(released, args, sent)
    given = sent["logits_processors"]
    guarded = type(given)(map(Guarded, given))
    return end_failed(released(engine, **sent | {"logits_processors": guarded}), guarded)


async def end_failed(outputs: Any, guarded: Sequence[Guarded]) -> AsyncIterator[Any]:
    """Yield outputs up to one after a failure; closing them aborts the request."""
    async with aclosing(outputs):
        async for output in outputs:
            if failed := any(one.error for one in guarded):
                output = replace(output, new_text="", finished=True, finish_reason="error")
            yield output
            if failed:
                return


async def collect(released: Callable[..., Any], engine: Any, *args: Any, **sent: Any) -> Any:
    """The answer of a request that is not streamed, from the outputs of a stream."""
    return await take_last(engine.stream_generate(**name_arguments(released, args, sent)))


def check_matcher(processor: Any, /) -> None:
    """Refuse a schema of which the matcher of a new processor makes no grammar."""
    if fault := processor._matcher.get_error():
        raise refusal(ValueError(" ".join(fault.split())))


_SCHEMAS = "vllm_mlx.constrained.llguidance_schema_processor:LLGuidanceJSONSchemaLogitsProcessor"

PATCH = Patch(
    id="vllm-processor-failure",
    severity="crash",
    probe=".probe_failures:probe",
    targets=(
        *wrap(f"{BATCHED}.stream_generate", guard, when=has_processors),
        *wrap(f"{BATCHED}.generate", collect, when=has_processors, supports=True),
        *after(f"{_SCHEMAS}.__init__", check_matcher, supports=True),
    ),
)
