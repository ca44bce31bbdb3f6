"""mlx-openai-server ignores seeds, tool_choice and stop strings in tokens, and loses tool calls.

Why: The server compares tokens: it misses a stop string that the model tokenizes differently, and
    sends the first tokens of one that it finds. It drops the seed of a batched request, ignores
    ``tool_choice``, and loses a call that it cannot parse, text that a parser still holds at the
    end, and with a parser all text of a streamed response. The finish reason is ``stop`` even if
    the answer was cut.
How: The chunks of a batched answer are searched for stop strings, and the batch gets a sampler with
    the seed. With ``tool_choice: "none"`` calls stay text. If ``tool_choice`` requires a call and
    the model makes none, the request fails with status 400, a stream with an error. The handler's
    process passes the finish reason to the server's.
Upstream: Not fixed in mlx-openai-server 1.8.1.
Retire when: The server honours these fields.
"""

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from typing import Any

from ....core.verbs import Function, Patch, result, wrap
from ..._shared.refusals import answer, client_error
from ..._shared.seeded import Seeded
from ..._shared.stop_strings import Cut, read_stops

_CONTEXT, _REASON = "_mlx_patches_context", "_mlx_patches_reason"


# In the handler's process.


async def build_context(build: Function, handler: Any, request: Any) -> Any:
    """The context of a request, which is kept on the request as well."""
    context = await build(handler, request)
    vars(request)[_CONTEXT] = context
    if request.tool_choice == "none" and "tool_choice" in request.model_fields_set:
        context.parsers_result.tool_parser = None
    context.model_params["seed"] = request.seed
    return context


def add_seed(sampler: Callable[[Any], Any], params: dict[str, Any]) -> Callable[[Any], Any]:
    """The sampler of a batched request, with its seed."""
    seed = params.get("seed")
    return sampler if seed is None or seed < 0 else Seeded(sampler, seed)


def submit(released: Function, handler: Any, scheduler: Any, context: Any) -> Any:
    """The chunks of a batched answer, up to the first stop string."""
    stops = read_stops(context.model_params.pop("stop", None))
    return watch(released(handler, scheduler, context), context, stops)


async def watch(chunks: Any, context: Any, stops: Sequence[str]) -> AsyncIterator[Any]:
    """Yield chunks, and note the finish reason; closing the chunks ends their row."""
    cut, passed = Cut(stops), list[Any]()
    async with aclosing(chunks):
        async for chunk in chunks:
            passed = cut.push(chunk) if stops else [chunk]
            if cut.ended:
                break
            for one in passed:
                vars(context)[_REASON] = one.finish_reason
                yield one
    if cut.ended:
        vars(context)[_REASON] = "stop"
        for one in passed:
            yield one


def read_unread_calls(parsers: Any) -> Any:
    """Parsers that return a text without a readable call as content."""
    parser = parsers.tool_parser
    if parser is not None:
        extract = parser.extract_tool_calls

        def read(text: str) -> Any:
            found = extract(text) or {}
            return found if found.get("tool_calls") or found.get("content") else {"content": text}

        parser.extract_tool_calls = read
    return parsers


async def check_answer(generate: Function, handler: Any, request: Any) -> Any:
    """An answer that is not streamed, with its finish reason."""
    found = await answer(generate, handler, request)
    check_call(request, found["response"].get("tool_calls"))
    found["response"][_REASON] = read_reason(request)
    return found


async def check_stream(generate: Function, handler: Any, request: Any) -> AsyncIterator[Any]:
    """A stream with what its parsers still hold, and its finish reason."""
    called = False
    async with aclosing(generate(handler, request)) as chunks:
        async for chunk in chunks:
            named = chunk if isinstance(chunk, dict) else {}
            called = called or "name" in named
            if "__usage__" in named:
                for rest in take_held(vars(request)[_CONTEXT].parsers_result):
                    yield rest
                check_call(request, called)
                chunk = {**chunk, _REASON: read_reason(request)}
            # The responses API drops the text of a parser's chunk.
            yield named["content"] if named.keys() == {"content"} else chunk


def take_held(parsers: Any) -> list[Any]:
    """The text that the parsers of a stream hold at its end."""
    thought = getattr(parsers.reasoning_parser, "buffer", "")
    text = getattr(parsers.tool_parser, "buffer", "")
    return [*([{"reasoning_content": thought}] if thought else []), *([text] if text else [])]


def check_call(request: Any, called: Any) -> None:
    """Refuse an answer that lacks the call which ``tool_choice`` requires.

    Raises:
        ValueError: it does; the server answers with status 400.
    """
    if request.tools and not called and request.tool_choice not in (None, "none", "auto"):
        error = client_error("tool_choice requires a tool call; the model made none")
        message = {"message": str(error), "type": "bad_request", "code": "400"}
        error.detail = {"error": message}  # type: ignore[attr-defined]  # a stream's last event
        raise error


def read_reason(request: Any) -> Any:
    """The finish reason of the answer to a request; None if it was not batched."""
    return vars(vars(request)[_CONTEXT]).get(_REASON)


# In the server's process.


def is_cut(response: Any) -> bool:
    """Whether an answer without a call was cut at its limit."""
    return (
        isinstance(response, dict)
        and response.get(_REASON) == "length"
        and not response.get("tool_calls")
    )


def end_choice(answer: Any, response: Any) -> Any:
    """A chat answer with its finish reason."""
    if is_cut(response):
        answer.choices[0].finish_reason = "length"
    return answer


def end_response(answer: Any, response: Any) -> Any:
    """An answer of the responses API with its status."""
    if not is_cut(response):
        return answer
    return type(answer).model_validate({**answer.model_dump(), **_INCOMPLETE})


async def end_stream(
    released: Function, generator: Any, *args: Any, **kwargs: Any
) -> AsyncIterator[str]:
    """The events of a stream, with the finish reason of its chunks in the last one."""
    ends: list[Any] = []

    async def note_end() -> AsyncIterator[Any]:
        async with aclosing(generator):
            async for chunk in generator:
                if isinstance(chunk, dict) and chunk.get(_REASON) == "length":
                    ends.append(chunk)
                yield chunk

    async with aclosing(released(note_end(), *args, **kwargs)) as events:
        async for event in events:
            yield end_event(event) if ends else event


def end_event(event: str) -> str:
    """An event after the last chunk of an answer that was cut."""
    head, data, content = event.partition("data: ")
    if not content.startswith("{"):
        return event
    sent = json.loads(content)
    for choice in sent.get("choices", ()):
        if choice.get("finish_reason") == "stop":
            choice["finish_reason"] = "length"
    if sent.get("type") == "response.completed":
        head, sent["type"] = "event: response.incomplete\n", "response.incomplete"
        sent["response"].update(_INCOMPLETE)
    return f"{head}{data}{json.dumps(sent)}\n\n"


_INCOMPLETE = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
_HANDLER, _ENDPOINTS = "app.handler.mlx_lm:MLXLMHandler", "app.api.endpoints"

PATCH = Patch(
    id="openai-server-answers",
    severity="feature",
    targets=(
        *wrap(f"{_HANDLER}._submit_batched_stream", submit),
        *wrap(f"{_HANDLER}._build_inference_context", build_context, supports=True),
        *wrap(f"{_HANDLER}.generate_text_response", check_answer, supports=True),
        *wrap(f"{_HANDLER}.generate_text_stream", check_stream, supports=True),
        *result("app.models.mlx_lm:MLX_LM.build_sampler", add_seed, supports=True),
        *result("app.parsers:ParserManager.create_parsers", read_unread_calls, supports=True),
        *result(f"{_ENDPOINTS}:format_final_response", end_choice, supports=True),
        *result(f"{_ENDPOINTS}:format_final_responses_response", end_response, supports=True),
        *wrap(f"{_ENDPOINTS}:handle_stream_response", end_stream, supports=True),
        *wrap(f"{_ENDPOINTS}:handle_responses_stream_response", end_stream, supports=True),
    ),
)
