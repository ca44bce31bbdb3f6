"""mlx_vlm.server ignores the stop strings of a request.

Why: The server accepts any field in a request, but never reads ``stop``. Clients that end a turn, a
    line or a block of code at a stop string also get the text after it. The ``stop_sequences`` of
    ``/v1/messages`` are cut out of a complete answer, but not out of a stream.
How: A request's generation arguments carry its stop strings. The text of its answer is searched as
    it is generated: at the first stop string the answer ends, with the text before it and
    ``finish_reason: stop``, and the row is cancelled. Text that may begin a stop string is held
    back until that is certain. The token in which the stop string begins is the last one counted;
    like a stop token, it has no logprobs. ``stop_sequences`` do not apply to thinking and tool
    calls, as in the release. Requests without stop strings run the release's code, and so does the
    summary that the server makes of a long request.
Upstream: Reported as mlx-vlm #1044; #1069 was closed. Not fixed in mlx-vlm 0.7.10. The server of
    mlx-vlm below 0.5 is not repaired.
Retire when: The server stops at the stop strings of a request.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import groupby
from typing import Any

from ....core.verbs import Patch, argument, mx, result
from ..._shared.refusals import client_error
from ..._shared.stop_strings import cut_at_stops, find_stop_fault, read_stops
from ..._shared.targets import vlm_server
from ..._shared.vlm_calls import find_parser
from ..._shared.vlm_sections import Sections, find_thinking
from ..._shared.vlm_tokens import Tokens


class StopSequences(list[str]):
    """The stop strings of a request to ``/v1/messages``, and the one that ended its answer."""

    found: str | None = None
    parser: Any = None  # of its tool calls


def add_stops(built: Any, request: Any, processor: Any) -> Any:
    """The generation arguments of a request, with its stop strings."""
    if stops := find_stops(request):
        built.stop = stops
    elif sequences := getattr(request, "stop_sequences", None):
        built.stop = request.stop_sequences = StopSequences(filter(None, sequences))
        built.stop.parser = find_parser(request, processor)
    return built


def find_stops(request: Any) -> list[str]:
    stop = getattr(request, "stop", None) or []
    if fault := find_stop_fault(stop):
        raise client_error(fault)
    return read_stops(stop)


def end_at_stops(answer: tuple[Any, Any], prompt: Any, args: Any) -> tuple[Any, Any]:
    """The context of a request and its tokens, up to the first stop string."""
    return answer[0], Tokens(answer[1], cut_answer(answer[1], prompt, args))


def has_stops(args: Any) -> bool:
    return bool(getattr(args, "stop", ()))


def cut_answer(tokens: Any, prompt: Any, args: Any) -> Iterator[Any]:
    if isinstance(args.stop, StopSequences):
        found = cut_message(tokens, args.stop, find_sections(prompt, args))
    else:
        found = cut_at_stops(tokens, args.stop, lambda stop: tokens.close())
    for token in found:
        # The release reports the memory with a row's last token, which was never generated.
        if token.finish_reason and not token.peak_memory:
            token.peak_memory = mx.get_peak_memory() / 1e9
        yield token


def cut_message(tokens: Any, stops: StopSequences, sections: Sections) -> Iterator[Any]:
    """The tokens of a message up to the first stop string outside its sections."""

    def end(stop: str) -> None:
        stops.found = stop
        tokens.close()

    search = partial(cut_at_stops, stops=stops, stop=end)
    for skipped, run in groupby(tokens, sections.has):
        yield from (iter if skipped else search)(run)
        if stops.found:
            return


def find_sections(prompt: Any, args: Any) -> Sections:
    """The sections of an answer that stop sequences do not apply to: thinking and tool calls."""
    markers, parser = find_thinking(args), args.stop.parser
    if parser:
        markers.append((parser.tool_call_start, parser.tool_call_end or "\n"))
    return Sections(markers, str(prompt))


def report_stop(answer: tuple[str, str | None], stop_sequences: Any) -> tuple[str, str | None]:
    """A text and the stop string that ended it, which its tokens do not have."""
    return answer[0], answer[1] or getattr(stop_sequences, "found", None)


def remove_stops(request: Any) -> Any:
    """A request without its stop strings, which are for the answer, not for the summary."""
    return request.model_copy(update={"stop": None}) if find_stops(request) else request


PATCH = Patch(
    id="vlm-stop-text",
    targets=(
        *result(
            vlm_server("generation", "ResponseGenerator.generate"),
            end_at_stops,
            fingerprint_of=("ResponseGenerator.generate", "GenerationArguments"),
            when=has_stops,
        ),
        *result(vlm_server("app", "_build_gen_args"), add_stops, supports=True),
        *result("mlx_vlm.server.anthropic:_apply_stop_sequences", report_stop, supports=True),
        *argument(
            "mlx_vlm.server.compaction:compact_response_context",
            "request",
            remove_stops,
            supports=True,
        ),
    ),
)
