"""mlx_lm.server misses stop strings that the model tokenizes differently.

Why: The server encodes each stop string, and stops only at exactly these tokens. A model often
    writes the same text in other tokens, because a token includes a neighbouring character. Then
    generation runs to its limit; mlx-lm 0.32 also drops the string from the text.
How: The text of the answer is searched as it is generated. At the first stop string the answer
    ends, with the text before it and ``finish_reason: stop``, and generation stops. Text that may
    begin a stop string is held back until it is known. The release does not get the stop strings,
    since mlx-lm 0.32 would drop the text that it holds back. It removes stopped rows only after
    half a second of decode steps, for which new requests wait; a stop ends these steps.
Upstream: mlx-lm 1501, 1869; not fixed in mlx-lm 0.32.2. The server of mlx-lm up to 0.28.3 is not
    repaired.
Retire when: The server stops at a stop string however it is tokenized.
"""

import copy
from collections.abc import Callable
from typing import Any

from ....core.verbs import Patch, before, wrap
from ..._shared.stop_strings import cut_at_stops, read_stops


def end_at_stops(
    generate: Callable[..., tuple[Any, Any]],
    generator: Any,
    request: Any,
    args: Any,
    *more: Any,
    **options: Any,
) -> tuple[Any, Any]:
    """The context of a request and its responses, up to the first stop string."""
    stops = read_stops(args.stop_words)
    args = copy.copy(args)
    # What is no text is the release's. An empty text would end every answer of mlx-lm 0.31.
    args.stop_words = [word for word in args.stop_words if not isinstance(word, str)]
    context, responses = generate(generator, request, args, *more, **options)
    # From mlx-lm 0.32 on the server drops the text of the response that ends an answer; an answer
    # without such a response counts as complete.
    reason = None if hasattr(context, "text_sm") else "stop"

    def stop_row(stop: str) -> None:
        context.stop()
        budget = getattr(generator, "_time_budget", None)
        if budget and not budget._is_distributed:
            budget.steps_left = 1  # in which the server sees the stop

    return context, cut_at_stops(responses, stops, stop_row, reason)


def end_steps(self: Any, /) -> None:
    """Let the time for decode steps end, if a row was stopped a step ago."""
    left = vars(self).pop("steps_left", None)
    if left:
        self.steps_left = 0
    elif left == 0:
        self._start = 0.0


def has_stops(generator: Any, request: Any, args: Any, /) -> bool:
    return bool(args.stop_words)


PATCH = Patch(
    id="server-stop-text",
    targets=(
        *wrap(
            "mlx_lm.server:ResponseGenerator.generate",
            end_at_stops,
            fingerprint_of=("ResponseGenerator.generate", "stopping_criteria", "Response"),
            when=has_stops,
        ),
        *before("mlx_lm.server:TimeBudget.__next__", end_steps, supports=True),
    ),
)
