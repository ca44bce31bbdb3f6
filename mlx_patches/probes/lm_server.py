"""``mlx_lm.server`` without sockets, threads or a model: it answers requests from a script."""

import dataclasses
import io
import json
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

_UNSET = ("model", "adapter_path", "draft_model", "kv_bits", "prompt_cache_bytes")
_SAMPLING = {"temp": 0.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0}
_OPTIONS: dict[str, Any] = dict.fromkeys(_UNSET) | _SAMPLING
_OPTIONS |= {"num_draft_tokens": 3, "max_tokens": 64}
_OPTIONS |= {"allowed_origins": "*", "chat_template_args": {}}
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def post(
    module: Any,
    responses: Iterable[Any],
    *,
    path: str = CHAT,
    parser: Any = None,
    markers: Sequence[str] = ("<tool>", "</tool>"),
    **body: Any,
) -> list[dict[str, Any]]:
    """Post a request whose answer consists of these responses.

    Args:
        module: the server's module.
        parser: the model's tool parser; None if it calls no tools.
        markers: of the model's tool calls.
        body: further parameters of the request.

    Returns:
        The answer; if it is streamed, its chunks.
    """
    context = make_context(module, parser, markers)
    handler = make_handler(module, make_generator(module, context, responses), path)
    send(handler, **body)
    answer = handler.wfile.getvalue().decode()
    lines = [line.removeprefix("data: ") for line in answer.splitlines() if line.startswith("data")]
    return [json.loads(line) for line in lines or [answer] if line != "[DONE]"]


def send(handler: Any, **body: Any) -> None:
    """Let a handler answer a request with these parameters."""
    is_chat = handler.path == CHAT
    given = {"messages": [{"role": "user", "content": "a"}]} if is_chat else {"prompt": "a"}
    send_text(handler, json.dumps(given | body).encode())


def send_text(handler: Any, text: bytes) -> None:
    """Let a handler answer a request with this body."""
    handler.headers = {"Content-Length": str(len(text))}
    handler.rfile = io.BytesIO(text)
    handler.do_POST()


def make_response(module: Any, token: int, text: str = "", **given: Any) -> Any:
    """A response of the release's class, which lacks some of the fields in some releases."""
    known = {"text": text, "token": token, "finish_reason": None, "logprob": 0.0}
    known |= {"state": "normal", "match": None, "top_tokens": ()} | given
    names = {field.name for field in dataclasses.fields(module.Response)}
    return module.Response(**{name: value for name, value in known.items() if name in names})


def make_call(
    module: Any, texts: Sequence[str], *, closed: bool = True, before: str = "", end: str = "stop"
) -> list[Any]:
    """The responses of an answer that calls tools with these texts.

    Args:
        closed: whether each call has its end marker; without it, the calls are one.
        before: the text before the calls.
        end: the finish reason; the last response has the state that a stop token leads to.
    """
    has_states = any(field.name == "state" for field in dataclasses.fields(module.Response))
    parts: list[tuple[str, str | None]] = [(before, "normal")]
    for text in texts:
        opening, closing = ("", "") if has_states else ("<tool>", "</tool>" if closed else "")
        parts += [(opening, "tool"), (text, "tool"), (closing, "normal" if closed else "tool")]
    parts.append(("", None if end == "stop" else parts[-1][1]))
    last = len(parts) - 1
    return [
        make_response(
            module, place, text, state=state, finish_reason=end if place == last else None
        )
        for place, (text, state) in enumerate(parts)
    ]


def make_context(module: Any, parser: Any = None, markers: Sequence[str] = ("", "")) -> Any:
    """The context of a request: its prompt, its tools and whether its answer was stopped."""
    context = object.__new__(module.GenerationContext)
    vars(context).update((field.name, None) for field in dataclasses.fields(context))
    has_tools = parser is not None
    vars(context).update(prompt=[1], initial_state="normal")
    vars(context).update(eos_token_ids=set(), stop_token_sequences=[])
    if hasattr(context, "sequences"):
        context.sequences = {(0,): ""}
    vars(context).update(_should_stop=False, prompt_cache_count=0, has_thinking=False)
    vars(context).update(has_tool_calling=has_tools, tool_parser=parser)
    if hasattr(module, "make_text_state_machine"):
        tokenizer = SimpleNamespace(
            has_thinking=False,
            has_tool_calling=has_tools,
            structural_markers=[],
            tool_call_start=markers[0],
            tool_call_end=markers[1],
            response_transitions={},
        )
        context.text_sm = module.make_text_state_machine(tokenizer)
    return context


def make_generator(module: Any, context: Any, responses: Iterable[Any]) -> Any:
    """The server's generator without its thread; it answers every request with ``responses``."""

    class Generator(module.ResponseGenerator):  # type: ignore[misc]
        def __init__(self) -> None:
            self.requests = SimpleNamespace(put=self.enqueue)
            self.model_provider = SimpleNamespace(cli_args=SimpleNamespace(**_OPTIONS))
            self._is_distributed = False

        def enqueue(self, request: Any) -> None:
            self.answer = request[0]  # a queue
            for response in (context, *responses, None):
                request[0].put(response)

        def generation_available(self) -> bool:
            return True

        def _await_response(self, queue: Any) -> Any:
            return queue.get()

    return Generator()


def make_handler(module: Any, generator: Any, path: str) -> Any:
    """A request handler without a socket; its ``wfile`` gets the body of the answer only."""

    class Handler(module.APIHandler):  # type: ignore[misc]
        def __init__(self) -> None:
            self.response_generator = generator
            self.created, self.system_fingerprint = 0, ""
            self.path, self.wfile = path, io.BytesIO()
            self.connection = None

        def send_response(self, code: int, message: str | None = None) -> None:
            self.status = code

        def send_header(self, keyword: str, value: str) -> None:
            pass

        def end_headers(self) -> None:
            pass

    return Handler()
