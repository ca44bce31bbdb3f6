"""mlx_lm.server ignores a stop string that the model writes in other tokens than its own.

Why
    The server encodes each stop string, and ends where the model writes exactly these tokens. A
    model often writes the same text in other tokens, because a token takes in a neighbouring
    character. Then the answer goes on to its limit, in mlx-lm 0.32 without the string in its text.
How
    The text of the answer is searched as it comes. At the first stop string the answer ends, with
    the text before it and ``finish_reason: stop``, and the generation is stopped. What may be the
    beginning of a stop string is held back until it is known. The release is not told of the stop
    strings: mlx-lm 0.32 drops text that it holds back itself.
Upstream
    mlx-lm 1501, 1869; not fixed in mlx-lm 0.32.2. The server of mlx-lm up to 0.28.3 is not
    repaired.
Retire when
    The server ends at a stop string whatever its tokens are.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import filterfalse
from typing import Any

from ....core.patch import Patch, Target, around
from ..._shared.stop_strings import cut


def end_at_stops(
    generate: Callable[..., tuple[Any, Any]],
    generator: Any,
    request: Any,
    args: Any,
    *more: Any,
    **options: Any,
) -> tuple[Any, Any]:
    """The context of a request and its responses, up to the first stop string."""
    if not has_stops(generator, request, args):  # another patch's layer let this one run
        return generate(generator, request, args, *more, **options)
    stops = list(filter(is_text, args.stop_words))
    args = copy.copy(args)
    args.stop_words = list(filterfalse(is_text, args.stop_words))
    context, responses = generate(generator, request, args, *more, **options)
    # From mlx-lm 0.32 on the server drops the text of a response that ends the answer, and an
    # answer without such a response has ended by itself.
    reason = None if hasattr(context, "text_sm") else "stop"
    return context, cut(responses, stops, context.stop, reason)


def is_text(word: Any) -> bool:
    """Whether a stop string can be found in a text. The release has not checked it."""
    return isinstance(word, str) and bool(word)


def has_stops(generator: Any, request: Any, args: Any, *more: Any, **options: Any) -> bool:
    """Whether a request has stop strings."""
    return bool(args.stop_words)


PATCH = Patch(
    id="server-stop-text",
    every_model=True,
    summary="mlx_lm.server misses stop strings that the model tokenizes differently",
    targets=(
        Target(
            "mlx-lm",
            "mlx_lm.server",
            "ResponseGenerator.generate",
            around(end_at_stops),
            fingerprint_of=("ResponseGenerator.generate", "stopping_criteria", "Response"),
            when=has_stops,
        ),
    ),
)
