"""``mlx_vlm.server`` ignores ``stop``: the answer goes on to its end or its limit.

Why
    The server accepts any field of a request, and reads ``stop`` nowhere. Clients that end a
    turn, a line or a block of code by a stop string get the text after it too.
How
    The stop strings of a request ride on its generation arguments. The text of its answer is
    searched as it comes: at the first stop string the answer ends, with the text before it and
    ``finish_reason: stop``, and the row is cancelled. What may be the beginning of a stop string
    is held back until it is known. The token in which the stop string begins is the last that
    counts; like a stop token, it has no logprobs. Requests without ``stop`` take the release's
    way, and so does the summary that the server makes of a long request.
Upstream
    Reported as mlx-vlm #1044; #1069 was closed. Not fixed in mlx-vlm 0.7.10. The server of mlx-vlm
    below 0.5 is not repaired. Neither are the ``stop_sequences`` of ``/v1/messages``: the release
    looks for them in the whole answer, after it has been generated and streamed.
Retire when
    The server ends at the stop strings of a request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from ....core.patch import Patch, Target, around
from ..._shared.stop_strings import cut
from ..._shared.vlm_server import find_generation_arguments


def arguments(build: Callable[..., Any], request: Any, *args: Any, **options: Any) -> Any:
    """The generation arguments of a request, with its stop strings."""
    built = build(request, *args, **options)
    if stops := stop_strings(request):
        built.stop = stops
    return built


def stop_strings(request: Any) -> list[str]:
    """The stop strings of a request. The release has not checked them."""
    stop = getattr(request, "stop", None)
    listed = stop if isinstance(stop, list) else [stop]
    return [word for word in listed if isinstance(word, str) and word]


def end_at_stops(
    generate: Callable[..., tuple[Any, Any]], server: Any, *args: Any, **options: Any
) -> tuple[Any, Any]:
    """The context of a request and its tokens, up to the first stop string."""
    stops = find_stops(server, *args, **options)
    if not stops:  # another patch's layer let this one run
        return generate(server, *args, **options)
    context, tokens = generate(server, *args, **options)
    return context, UntilStop(tokens, stops)


def find_stops(*args: Any, **options: Any) -> Sequence[str]:
    """The stop strings among the arguments of a generation."""
    return getattr(find_generation_arguments(*args, **options), "stop", ())


def has_stops(*args: Any, **options: Any) -> bool:
    """Whether there are stop strings among the arguments of a generation."""
    return bool(find_stops(*args, **options))


class UntilStop:
    """The tokens of an answer up to the first stop string.

    Unlike a generator, it can be closed while another thread waits for its next token: so the
    server cancels a request whose client has gone.
    """

    def __init__(self, tokens: Any, stops: Sequence[str]):
        self.close = tokens.close
        self._tokens = cut(tokens, stops, tokens.close)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        token = next(self._tokens)
        # The release reports the memory with the last token of a row, which did not come.
        if token.finish_reason and not token.peak_memory:
            import mlx.core as mx

            token.peak_memory = mx.get_peak_memory() / 1e9
        return token


def without_stops(compact: Callable[..., Any], request: Any, *args: Any, **options: Any) -> Any:
    """Summarize a long request; its stop strings are of its answer, not of the summary."""
    if stop_strings(request):
        request = request.model_copy(update={"stop": None})
    return compact(request, *args, **options)


_VLM = partial(Target, "mlx-vlm")

PATCH = Patch(
    id="vlm-stop-text",
    every_model=True,
    summary="mlx_vlm.server ignores the stop strings of a request",
    targets=(
        *(
            _VLM(
                module,
                "ResponseGenerator.generate",
                around(end_at_stops),
                fingerprint_of=("ResponseGenerator.generate", "GenerationArguments"),
                when=has_stops,
            )
            for module in ("mlx_vlm.server", "mlx_vlm.server.generation")
        ),
        *(
            _VLM(module, "_build_gen_args", around(arguments), supports=True)
            for module in ("mlx_vlm.server", "mlx_vlm.server.app")
        ),
        _VLM(
            "mlx_vlm.server.compaction",
            "compact_response_context",
            around(without_stops),
            supports=True,
        ),
    ),
)
